"""Attention of one token over the cache: splits, packed query heads (D6), coalesced reads (D5), fixed blocks (D7)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attention_cases import (
    BFLOAT16,
    COALESCED,
    HEAD_DIM,
    QUERY_HEADS,
    Array,
    Shape,
    attend,
    random_bfloat16,
    random_cache,
    sigmoid,
)

from device_runner import from_bfloat16, run, sim
from lily_args import ARGS

THREADS, BLOCK = ARGS.kAttentionThreads, ARGS.kAttentionBlock

# Positions around the 8 of a simdgroup, the 32 of a round and the 512 of a block; more splits than positions.
GENERAL = [
    (Shape(rows=1, heads=8, kv_heads=1, head_dim=256, position=76, splits=3), 4),
    (Shape(rows=1, heads=16, kv_heads=2, head_dim=256, position=0, splits=4), 4),
    (Shape(rows=1, heads=4, kv_heads=2, head_dim=64, position=30, splits=64), 2),
    (Shape(rows=1, heads=3, kv_heads=1, head_dim=128, position=32, splits=2), 1),
    (Shape(rows=1, heads=4, kv_heads=1, head_dim=96, position=600, splits=1), 2),
    (Shape(rows=1, heads=8, kv_heads=2, head_dim=192, position=1037, splits=2), 4),
    (Shape(rows=1, heads=8, kv_heads=1, head_dim=32, position=9, splits=1), 1),
]
BLOCKED = [
    (Shape(rows=1, heads=8, kv_heads=1, head_dim=256, position=1029, splits=4), 4),
    (Shape(rows=1, heads=16, kv_heads=2, head_dim=256, position=511, splits=1), 2),
    (Shape(rows=1, heads=8, kv_heads=1, head_dim=256, position=512, splits=2), 1),
]
CASES = [("attention_decode", *case) for case in GENERAL] + [("attention_decode_blocked", *case) for case in BLOCKED]


def inputs(shape: Shape, seed: int, score_scale: float = 1.0) -> tuple[Array, Array, Array]:
    """Queries [1, heads, head_dim], keys and values; ``score_scale`` is about the deviation of scores."""
    rng = np.random.default_rng(seed)
    query = random_bfloat16(rng, 1, shape.heads, shape.head_dim, scale=score_scale / np.sqrt(shape.head_dim))
    return query, *random_cache(rng, shape, shape.position + 1)


def decode(device: Any, kernel: str, shape: Shape, query_heads: int, coalesced: int, given: Any) -> Array:
    query, keys, values = given
    partial = np.full((shape.splits, shape.heads, shape.head_dim + 2), np.nan, np.float32)
    run(
        device,
        kernel,
        {0: query, 1: keys, 2: values, 3: np.array([shape.position], np.int32), 4: partial},
        args=shape.args(),
        threadgroups=(shape.splits, shape.heads // query_heads),
        threads=THREADS,
        constants={HEAD_DIM: shape.head_dim, QUERY_HEADS: query_heads, COALESCED: coalesced},
    )
    return partial


def reduce(device: Any, shape: Shape, partial: Array, projected: Array) -> Array:
    out = np.full((shape.heads, shape.head_dim), 0xABCD, np.uint16)
    run(
        device,
        "attention_reduce",
        {0: partial, 1: projected, 2: out},
        args=shape.args(),
        threadgroups=(shape.heads,),
        threads=THREADS,
        constants={HEAD_DIM: shape.head_dim},
    )
    return out


def splits_of(kernel: str, shape: Shape) -> list[slice]:
    positions = shape.position + 1
    size = BLOCK if kernel == "attention_decode_blocked" else -(-positions // shape.splits)
    return [slice(min(i * size, positions), min((i + 1) * size, positions)) for i in range(shape.splits)]


def assert_partial(kernel: str, shape: Shape, partial: Array, given: Any) -> None:
    """Float32 bounds: a product goes through at most 8 + head_dim / 8 sums to its score, a weight through at most 256
    to its sum. The error of scores is a relative one of their exponentials, which round by 2^-22 themselves."""
    query, keys, values = (from_bfloat16(part).astype(np.float64) for part in given)
    for split, covered in enumerate(splits_of(kernel, shape)):
        for head in range(shape.heads):
            kv_head = head * shape.kv_heads // shape.heads
            maximum, total, sums = partial[split, head, 0], partial[split, head, 1], partial[split, head, 2:]
            if covered.start == covered.stop:
                assert maximum == -np.inf and total == 0 and (sums == 0).all()
                continue
            key, value = keys[kv_head, covered], values[kv_head, covered]
            scores = key @ query[0, head]
            score_error = (8 + shape.head_dim / 8) * 2.0**-24 * (np.abs(key) @ np.abs(query[0, head])).max()
            weights = np.exp(scores - scores.max())
            error = 2 * score_error + 2.0**-16
            assert abs(maximum - scores.max()) <= score_error
            assert abs(total - weights.sum()) <= error * weights.sum()
            assert (np.abs(sums - weights @ value) <= error * (weights @ np.abs(value))).all()


@pytest.mark.parametrize("coalesced", [1, 0])
@pytest.mark.parametrize(("kernel", "shape", "query_heads"), CASES)
def test_splits(kernel: str, shape: Shape, query_heads: int, coalesced: int) -> None:
    given = inputs(shape, seed=shape.position + shape.heads)
    assert_partial(kernel, shape, decode(sim(), kernel, shape, query_heads, coalesced, given), given)


@pytest.mark.parametrize("query_heads", [4, 2, 1])
def test_packed_query_heads_agree(query_heads: int) -> None:
    shape = Shape(rows=1, heads=8, kv_heads=2, head_dim=160, position=150, splits=2)
    given = inputs(shape, seed=11)
    for coalesced in (1, 0):
        partial = decode(sim(), "attention_decode", shape, query_heads, coalesced, given)
        assert_partial("attention_decode", shape, partial, given)


@pytest.mark.parametrize("score_scale", [1.0, 40.0])
@pytest.mark.parametrize(("kernel", "shape", "query_heads"), CASES)
def test_gated_result(kernel: str, shape: Shape, query_heads: int, score_scale: float) -> None:
    """Rounding to bfloat16, and float32 steps: the products of a score of 160 add up to less than 2^10 in magnitude, so
    it errs by 40 * 2^-14 at worst, 2^-12 at random; a weight errs by that share of itself."""
    given = inputs(shape, seed=shape.position, score_scale=score_scale)
    projected = np.random.default_rng(1).standard_normal((shape.heads, 2, shape.head_dim)).astype(np.float32) * 3
    out = reduce(sim(), shape, decode(sim(), kernel, shape, query_heads, 1, given), projected)
    expected, magnitude = attend(shape, *given)
    gate = sigmoid(projected[:, 1])
    bound = (BFLOAT16 * np.abs(expected[0]) + 2.0**-11 * magnitude[0]) * gate
    assert (np.abs(from_bfloat16(out) - expected[0] * gate) <= bound).all()


@pytest.mark.parametrize("coalesced", [1, 0])
@pytest.mark.parametrize(
    ("kernel", "shape", "query_heads"),
    # The fifth and sixth have two blocks of 512 positions in a split, the one after the other in the same memory.
    [CASES[0], CASES[2], CASES[3], CASES[4], CASES[5], ("attention_decode_blocked", *BLOCKED[2])],
)
def test_any_order_gives_equal_bits(kernel: str, shape: Shape, query_heads: int, coalesced: int) -> None:
    given = inputs(shape, seed=5)
    projected = np.random.default_rng(2).standard_normal((shape.heads, 2, shape.head_dim)).astype(np.float32)
    results = []
    orders = [{"order": "reverse"}, {"order": "random", "seed": 3}, {"order": "random", "seed": 4}]
    for options in ({}, *orders, {"checked": True}, {"checked": True, "order": "random", "seed": 5}):
        partial = decode(sim(**options), kernel, shape, query_heads, coalesced, given)
        results.append((partial, reduce(sim(**options), shape, partial, projected)))
    for partial, out in results[1:]:
        np.testing.assert_array_equal(partial, results[0][0])
        np.testing.assert_array_equal(out, results[0][1])


def test_reduction_ignores_empty_splits() -> None:
    """150 splits, of which 2 in 3 are empty; the others' maxima are up to 60 apart."""
    shape = Shape(rows=1, heads=3, kv_heads=1, head_dim=256, position=0, splits=150)
    rng = np.random.default_rng(8)
    partial = rng.standard_normal((shape.splits, shape.heads, shape.head_dim + 2)).astype(np.float32)
    partial[..., 0] *= 20
    partial[..., 1] = np.abs(partial[..., 1]) + 1
    empty = np.arange(shape.splits) % 3 != 1
    partial[empty] = 0
    partial[empty, :, 0] = -np.inf
    projected = rng.standard_normal((shape.heads, 2, shape.head_dim)).astype(np.float32)
    out = reduce(sim(), shape, partial, projected)
    full = partial[~empty].astype(np.float64)
    weights = np.exp(full[..., 0] - full[..., 0].max(0))
    total = (weights * full[..., 1]).sum(0)[:, None]
    gate = sigmoid(projected[:, 1]) / total
    expected = np.einsum("sh,shd->hd", weights, full[..., 2:]) * gate
    magnitude = np.einsum("sh,shd->hd", weights, np.abs(full[..., 2:])) * gate
    # Rounding to bfloat16; float32 sums of 50 and exponentials of differences to 60.
    assert (np.abs(from_bfloat16(out) - expected) <= BFLOAT16 * np.abs(expected) + 2.0**-17 * magnitude).all()
