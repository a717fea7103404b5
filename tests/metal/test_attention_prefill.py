"""Causal attention of a chunk of tokens over the cache, gated."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from attention_cases import (
    BFLOAT16,
    HEAD_DIM,
    Array,
    Shape,
    attend,
    random_bfloat16,
    random_cache,
    sigmoid,
)

from device_runner import from_bfloat16, run, sim
from lily_args import ARGS

ROWS = ARGS.kWideAttentionRows if os.environ.get("LILY_TEST_DEVICE") == "cuda" else ARGS.kAttentionRows  # a threadgroup
UNWRITTEN = 0xABCD

# Rows below, at and above a threadgroup's; chunks that start a cache, continue one, and end at a block of 32 positions.
SHAPES = [
    Shape(rows=1, heads=8, kv_heads=1, head_dim=256, position=0),
    Shape(rows=45, heads=8, kv_heads=1, head_dim=256, position=39),
    Shape(rows=32, heads=16, kv_heads=2, head_dim=128, position=0),
    Shape(rows=33, heads=4, kv_heads=2, head_dim=64, position=31),
    Shape(rows=7, heads=3, kv_heads=1, head_dim=96, position=201),
    Shape(rows=70, heads=2, kv_heads=2, head_dim=32, position=5),
    Shape(rows=19, heads=4, kv_heads=1, head_dim=192, position=13),
    Shape(rows=131, heads=2, kv_heads=1, head_dim=256, position=70),
]


def inputs(shape: Shape, seed: int, score_scale: float = 1.0) -> tuple[Array, Array, Array, Array]:
    """Queries, keys, values and the projected query; ``score_scale`` is about the deviation of scores."""
    rng = np.random.default_rng(seed)
    query = random_bfloat16(rng, shape.rows, shape.heads, shape.head_dim, scale=score_scale / np.sqrt(shape.head_dim))
    projected = random_bfloat16(rng, shape.rows, shape.heads, 2, shape.head_dim, scale=3)
    return query, *random_cache(rng, shape, shape.position + shape.rows), projected


def prefill(device: Any, shape: Shape, given: Any) -> Array:
    query, keys, values, projected = given
    out = np.full((shape.rows, shape.heads, shape.head_dim), UNWRITTEN, np.uint16)
    position = np.array([shape.position], np.int32)
    run(
        device,
        "attention_prefill",
        {0: query, 1: keys, 2: values, 3: projected, 4: position, 5: out},
        args=shape.args(),
        threadgroups=(-(-shape.rows // ROWS), shape.heads),
        threads=ARGS.kAttentionThreads,
        constants={HEAD_DIM: shape.head_dim},
    )
    return out


def assert_close(shape: Shape, out: Array, given: Any, score_error: float) -> None:
    """Each weight is rounded to bfloat16 before the products and sums, the result once more; scores err in float32."""
    query, keys, values, projected = given
    exact, magnitude = attend(shape, query, keys, values)
    gate = sigmoid(from_bfloat16(projected[:, :, 1]))
    error = np.abs(from_bfloat16(out) - exact * gate)
    of_weights = (BFLOAT16 + 2 * score_error) * (magnitude + np.abs(exact))
    assert (error <= (BFLOAT16 * np.abs(exact) + of_weights) * gate).all()
    # The roundings of weights are independent, so what they add is smaller than the rounding of the largest results.
    typical = np.sqrt(np.mean(error**2))
    assert typical <= 0.65 * BFLOAT16 * np.sqrt(np.mean((exact * gate) ** 2))


@pytest.mark.parametrize("shape", SHAPES)
def test_gated_attention(shape: Shape) -> None:
    given = inputs(shape, seed=shape.rows)
    assert_close(shape, prefill(sim(), shape, given), given, score_error=2.0**-15)


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape.position == 0])
def test_a_row_that_sees_itself_alone_is_its_value(shape: Shape) -> None:
    """Its one weight is 1, which is exact: what remains is one rounding of the gated value, to the nearest."""
    given = inputs(shape, seed=12)
    out = prefill(sim(), shape, given)
    exact, _ = attend(shape, *given[:3])
    first = exact[0] * sigmoid(from_bfloat16(given[3][0, :, 1]))
    assert (np.abs(from_bfloat16(out[0]) - first) <= BFLOAT16 * (1 + 2.0**-8) * np.abs(first)).all()


@pytest.mark.parametrize("shape", SHAPES[1:5])
def test_scores_that_a_plain_exponential_cannot_hold(shape: Shape) -> None:
    """Scores to 400 (exp overflows at 89): maxima grow by hundreds between blocks. A score's products add up to 2^12 in
    magnitude, in float32 sums of up to 256."""
    given = inputs(shape, seed=3, score_scale=100.0)
    assert_close(shape, prefill(sim(), shape, given), given, score_error=2.0**-10)


def test_a_chunk_in_two_parts_gives_the_same_rows() -> None:
    """Rows of a second launch, which begins where a threadgroup of the first did, go through the same blocks."""
    shape = Shape(rows=ROWS + 18, heads=2, kv_heads=1, head_dim=128, position=17)
    query, keys, values, projected = inputs(shape, seed=9)
    whole = prefill(sim(), shape, (query, keys, values, projected))
    later = Shape(rows=18, heads=2, kv_heads=1, head_dim=128, position=shape.position + ROWS, capacity=shape.room)
    part = prefill(sim(), later, (query[ROWS:].copy(), keys, values, projected[ROWS:].copy()))
    np.testing.assert_array_equal(part, whole[ROWS:])


@pytest.mark.parametrize("shape", [SHAPES[1], SHAPES[3], SHAPES[4]])
def test_any_order_gives_equal_bits(shape: Shape) -> None:
    given = inputs(shape, seed=4)
    first = prefill(sim(), shape, given)
    for options in ({"order": "reverse"}, {"order": "random", "seed": 7}):
        np.testing.assert_array_equal(prefill(sim(**options), shape, given), first)


@pytest.mark.parametrize("shape", [SHAPES[0], Shape(rows=34, heads=2, kv_heads=1, head_dim=96, position=3)])
def test_checked_device_finds_nothing(shape: Shape) -> None:
    given = inputs(shape, seed=6)
    checked = prefill(sim(checked=True, order="random", seed=2), shape, given)
    np.testing.assert_array_equal(checked, prefill(sim(), shape, given))
