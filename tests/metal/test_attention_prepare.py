"""Queries, cached keys and cached values from projections: fused (D4c) and in two kernels, float32 and bfloat16."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attention_cases import BFLOAT16, HEAD_DIM, Array, Shape, random_bfloat16

from device_runner import Launch, from_bfloat16, run_stages, sim, to_bfloat16
from lily_args import ARGS
from reference.blocks import rms_norm

LANES = ARGS.kSimdWidth
SHAPES = [
    Shape(rows=1, heads=16, kv_heads=2, head_dim=256, position=131071, rotary_dim=64, capacity=131072),
    Shape(rows=5, heads=8, kv_heads=1, head_dim=128, position=3, rotary_dim=32),
    Shape(rows=3, heads=3, kv_heads=1, head_dim=64, position=0, rotary_dim=64),
    Shape(rows=7, heads=4, kv_heads=2, head_dim=96, position=1021, rotary_dim=22),
]
THETA = 1e7
UNWRITTEN = 0xABCD


def frequencies(shape: Shape) -> Array:
    half = shape.rotary_dim // 2
    return (THETA ** (-np.arange(half) / half)).astype(np.float32)


def inputs(shape: Shape, is_bfloat: bool, seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)

    def projection(*sizes: int) -> Array:
        bits = random_bfloat16(rng, *sizes, scale=2.5)
        return bits if is_bfloat else from_bfloat16(bits) + rng.standard_normal(sizes).astype(np.float32) / 1000

    return {
        "query": projection(shape.rows, shape.heads, 2, shape.head_dim),
        "key": projection(shape.rows, shape.kv_heads, shape.head_dim),
        "value": projection(shape.rows, shape.kv_heads, shape.head_dim),
        "q_norm": (1 + 0.3 * rng.standard_normal(shape.head_dim)).astype(np.float32),
        "k_norm": (1 + 0.3 * rng.standard_normal(shape.head_dim)).astype(np.float32),
        "frequencies": frequencies(shape),
        "position": np.array([shape.position], np.int32),
    }


def outputs(shape: Shape) -> dict[str, Array]:
    cache = (shape.kv_heads, shape.room, shape.head_dim)
    return {
        "prepared": np.full((shape.rows, shape.heads, shape.head_dim), UNWRITTEN, np.uint16),
        "keys": np.full(cache, UNWRITTEN, np.uint16),
        "values": np.full(cache, UNWRITTEN, np.uint16),
    }


def prepare(device: Any, shape: Shape, given: dict[str, Array], is_bfloat: bool, fused: bool) -> dict[str, Array]:
    out = outputs(shape)
    suffix = "_bf16" if is_bfloat else ""
    slots = {
        0: given["query"],
        1: given["key"],
        3: given["q_norm"],
        4: given["k_norm"],
        5: given["frequencies"],
        6: given["position"],
        7: out["prepared"],
    }
    constants = {HEAD_DIM: shape.head_dim}
    if fused:
        slots |= {2: given["value"], 8: out["keys"], 9: out["values"]}
        grid = (shape.heads + 2 * shape.kv_heads, shape.rows)
        stages = [
            [Launch("attention_prepare" + suffix, slots, grid, LANES, shape.args(), args_slot=10, constants=constants)]
        ]
    else:
        rotated = np.full((shape.rows, shape.kv_heads, shape.head_dim), UNWRITTEN, np.uint16)
        slots[8] = rotated
        grid = (shape.heads + shape.kv_heads, shape.rows)
        first = Launch(
            "attention_norm_rope" + suffix, slots, grid, LANES, shape.args(), args_slot=10, constants=constants
        )
        written = {0: rotated, 1: given["value"], 2: given["position"], 3: out["keys"], 4: out["values"]}
        second = Launch(
            "attention_cache_write" + suffix, written, (2 * shape.kv_heads, shape.rows), LANES, shape.args()
        )
        stages = [[first], [second]]
    run_stages(device, stages)
    return out


def rotate(x: Array, shape: Shape) -> Array:
    """x: [rows, heads, head_dim], with the frequencies as the kernel gets them."""
    half = shape.rotary_dim // 2
    positions = shape.position + np.arange(shape.rows)
    angles = positions[:, None, None] * frequencies(shape).astype(np.float64)
    a, b, rest = x[..., :half], x[..., half : shape.rotary_dim], x[..., shape.rotary_dim :]
    return np.concatenate([a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles), rest], -1)


def expected(shape: Shape, given: dict[str, Array], is_bfloat: bool) -> tuple[Array, Array, Array]:
    query, key, value = (
        (from_bfloat16(given[name]) if is_bfloat else given[name]).astype(np.float64)
        for name in ("query", "key", "value")
    )
    query = rotate(rms_norm(query[:, :, 0], given["q_norm"], 1e-6), shape) / np.sqrt(shape.head_dim)
    key = rotate(rms_norm(key, given["k_norm"], 1e-6), shape)
    return query, key.transpose(1, 0, 2), value.transpose(1, 0, 2)


def assert_rounded(bits: Array, exact: Array) -> None:
    """Rounding to bfloat16, and float32 steps: 2^-20 of the largest value covers cos, sin and both products."""
    bound = BFLOAT16 * np.abs(exact) * (1 + 2.0**-10) + 2.0**-20 * np.abs(exact).max()
    assert (np.abs(from_bfloat16(bits) - exact) <= bound).all()


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("is_bfloat", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_queries_keys_and_values(shape: Shape, is_bfloat: bool, fused: bool) -> None:
    given = inputs(shape, is_bfloat, seed=shape.head_dim + shape.rows)
    out = prepare(sim(), shape, given, is_bfloat, fused)
    query, key, value = expected(shape, given, is_bfloat)
    rows = slice(shape.position, shape.position + shape.rows)
    assert_rounded(out["prepared"], query)
    assert_rounded(out["keys"][:, rows], key)
    assert_rounded(out["values"][:, rows], value)
    for part in (out["keys"], out["values"]):  # and nothing else is written
        part[:, rows] = UNWRITTEN
        assert (part == UNWRITTEN).all()


@pytest.mark.parametrize("is_bfloat", [True, False])
@pytest.mark.parametrize("shape", SHAPES[1:])
def test_both_paths_and_any_order_give_equal_bits(shape: Shape, is_bfloat: bool) -> None:
    given = inputs(shape, is_bfloat, seed=shape.rows)
    first = prepare(sim(), shape, given, is_bfloat, fused=True)
    others = [
        prepare(sim(), shape, given, is_bfloat, fused=False),
        prepare(sim(checked=True), shape, given, is_bfloat, fused=True),
        prepare(sim(checked=True, order="random", seed=5), shape, given, is_bfloat, fused=False),
        prepare(sim(order="reverse"), shape, given, is_bfloat, fused=True),
    ]
    for other in others:
        for name, array in first.items():
            np.testing.assert_array_equal(other[name], array)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("is_bfloat", [True, False])
def test_heads_of_any_magnitude(is_bfloat: bool, fused: bool) -> None:
    """The norm's eps is nothing beside large heads, much beside small ones, and all there is beside zeros."""
    shape = SHAPES[1]
    given = inputs(shape, is_bfloat, seed=4)
    scales = np.array([0.0, 1e-4, 1e-3, 1e4, 1.0], np.float32)  # of rows, so that each head has each of them
    for name in ("query", "key"):
        values = from_bfloat16(given[name]) if is_bfloat else given[name]
        scaled = (values * scales.reshape(-1, *[1] * (values.ndim - 1))).astype(np.float32)
        given[name] = to_bfloat16(scaled) if is_bfloat else scaled
    out = prepare(sim(), shape, given, is_bfloat, fused)
    query, key, _ = expected(shape, given, is_bfloat)
    rows = range(shape.position, shape.position + shape.rows)
    for row, at in enumerate(rows):
        assert_rounded(out["prepared"][row], query[row])
        assert_rounded(out["keys"][:, at], key[:, row])
    assert (from_bfloat16(out["prepared"][0]) == 0).all() and (from_bfloat16(out["keys"][:, rows[0]]) == 0).all()
