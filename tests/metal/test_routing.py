"""Routing kernels against NumPy: chosen experts and weights, grouping by expert, block maps and the weighted sum."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from device_runner import KernelError, Launch, from_bfloat16, pack, run, run_stages, sim, to_bfloat16
from lily_args import ARGS

Array = np.ndarray[Any, Any]
THREADS = ARGS.kGroupThreads
ORDERS = [{"order": "forward"}, {"order": "reverse"}, {"order": "random", "seed": 5}]


def route(device: Any, logits: Array, count: int, normalize: bool) -> tuple[Array, Array]:
    rows, experts = logits.shape
    chosen, weights = np.full((rows, count), -7, np.int32), np.full((rows, count), np.nan, np.float32)
    run(
        device,
        "route_rows",
        {0: logits, 1: chosen, 2: weights},
        args=pack(rows, experts, count, int(normalize)),
        threadgroups=(rows,),
        threads=ARGS.kSimdWidth,
    )
    return chosen, weights


def expected_route(logits: Array, count: int, normalize: bool) -> tuple[Array, Array]:
    order = np.argsort(-logits.astype(np.float64), axis=1, kind="stable")[:, :count]
    chosen = np.sort(order, axis=1)
    exponents = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    weights = np.take_along_axis(exponents, chosen, 1)
    return chosen, weights / (weights if normalize else exponents).sum(axis=1, keepdims=True)


@pytest.mark.parametrize(
    ("rows", "experts", "count"),
    [
        (1, 256, 8),
        (13, 256, 8),
        (5, 16, 4),
        (3, 17, 17),
        (4, 33, 5),
        (3, 32, 32),
        (2, 257, 10),
        (3, 512, 10),
        (2, 1, 1),
    ],
)
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("ties", [False, True])
def test_route_rows(rows: int, experts: int, count: int, normalize: bool, ties: bool) -> None:
    logits = np.random.default_rng(rows + experts).normal(0, 2, (rows, experts)).astype(np.float32)
    if ties:
        logits = np.round(logits)  # a zero of either sign is the same
    results = [route(sim(**options), logits, count, normalize) for options in ORDERS]
    results.append(route(sim(checked=True), logits, count, normalize))
    chosen, weights = expected_route(logits, count, normalize)
    for result in results:
        np.testing.assert_array_equal(result[0], chosen)
        # Float32: exp to 2 ulp of an argument rounded to 2^-24 of at most 20, a sum of up to 512 terms.
        np.testing.assert_allclose(result[1], weights, rtol=4e-6)
        np.testing.assert_array_equal(result[1], results[0][1])


def test_route_rows_of_one_value_take_the_lowest_ids() -> None:
    chosen, weights = route(sim(), np.full((3, 256), 1.5, np.float32), 8, True)
    np.testing.assert_array_equal(chosen, np.tile(np.arange(8), (3, 1)))
    np.testing.assert_allclose(weights, 1 / 8, rtol=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_route_rows_of_bad_logits_invent_no_expert(value: float) -> None:
    logits = np.random.default_rng(3).normal(0, 1, (4, 100)).astype(np.float32)
    logits[0, [4, 70]] = value
    logits[1] = value
    chosen, weights = route(sim(checked=True), logits, 8, True)
    assert chosen.min() >= 0 and chosen.max() < 100
    for row in chosen:
        assert (np.diff(row) > 0).all()
    assert np.isnan(weights[1]).any()
    assert np.isnan(weights[0]).any() == (value != -np.inf)
    expected_chosen, expected_weights = expected_route(logits[2:], 8, True)
    np.testing.assert_array_equal(chosen[2:], expected_chosen)
    np.testing.assert_allclose(weights[2:], expected_weights, rtol=4e-6)


def group_launches(chosen: Array, experts: int, block_rows: int, poison: int) -> tuple[list[list[Launch]], list[Array]]:
    rows, count = chosen.shape
    max_blocks = chosen.size // block_rows + experts
    counts = np.full(experts, poison, np.uint32)
    offsets = np.full(experts + 1, poison, np.uint32)
    block_map = np.full((max_blocks, 2), poison, np.int32)
    block_count = np.full(1, poison, np.uint32)
    row_of, place_of = np.full(chosen.size, poison, np.uint32), np.full(chosen.size, poison, np.uint32)
    args = pack(rows, experts, count, block_rows, max_blocks)
    stages = [
        [Launch("route_histogram", {0: chosen, 1: counts}, (experts,), THREADS, args)],
        [Launch("route_offsets", {0: counts, 1: offsets, 2: block_map, 3: block_count}, (1,), THREADS, args)],
        [Launch("route_scatter", {0: chosen, 1: offsets, 2: row_of, 3: place_of}, (experts,), THREADS, args)],
    ]
    return stages, [counts, offsets, block_map, block_count, row_of, place_of]


def choices(seed: int, rows: int, experts: int, count: int, skew: float) -> Array:
    """Distinct experts a row, ascending; a high skew sends most rows to few experts."""
    random = np.random.default_rng(seed)
    score = random.gumbel(size=(rows, experts)) - skew * np.log1p(random.permutation(experts))
    return np.sort(np.argsort(-score, axis=1)[:, :count], axis=1).astype(np.int32)


@pytest.mark.parametrize(
    ("rows", "experts", "count", "block_rows", "skew"),
    [
        (1, 256, 8, 16, 0.0),
        (2, 7, 3, 16, 0.0),
        (77, 256, 8, 32, 1.0),
        (129, 130, 5, 16, 3.0),
        (301, 12, 3, 64, 6.0),
        (65, 300, 1, 16, 0.0),
        (50, 1, 1, 16, 0.0),
        (16, 8, 8, 16, 0.0),
    ],
)
def test_rows_are_grouped_by_expert(rows: int, experts: int, count: int, block_rows: int, skew: float) -> None:
    chosen = choices(rows, rows, experts, count, skew)
    devices = [sim(checked=True), *[sim(**options) for options in ORDERS]]
    for device in devices:
        stages, (counts, offsets, block_map, block_count, row_of, place_of) = group_launches(
            chosen, experts, block_rows, 77777
        )
        run_stages(device, stages)
        flat = chosen.reshape(-1)
        expected_counts = np.bincount(flat, minlength=experts)
        np.testing.assert_array_equal(counts, expected_counts)
        np.testing.assert_array_equal(offsets, np.concatenate([[0], np.cumsum(expected_counts)]))
        blocks = [(e, first) for e in range(experts) for first in range(0, expected_counts[e], block_rows)]
        assert block_count[0] == len(blocks) <= len(block_map)
        np.testing.assert_array_equal(block_map[: len(blocks)], blocks)
        np.testing.assert_array_equal(block_map[len(blocks) :], 77777)
        order = np.argsort(flat, kind="stable")
        np.testing.assert_array_equal(row_of, order // count)
        np.testing.assert_array_equal(place_of[order], np.arange(len(flat)))


def test_prefill_of_the_real_shape() -> None:
    chosen = choices(8, 2048, 256, 8, 0.7)
    stages, (counts, offsets, _, block_count, row_of, place_of) = group_launches(chosen, 256, 32, 0)
    run_stages(sim(), stages)
    order = np.argsort(chosen.reshape(-1), kind="stable")
    np.testing.assert_array_equal(row_of, order // 8)
    np.testing.assert_array_equal(place_of[order], np.arange(len(order)))
    assert offsets[-1] == 2048 * 8
    assert block_count[0] == np.ceil(counts / 32).sum()


def combine_inputs(rows: int, hidden_size: int, count: int) -> dict[int, Array]:
    random = np.random.default_rng(rows + hidden_size)
    return {
        0: to_bfloat16(random.normal(0, 1, (rows * count, hidden_size))),
        1: random.permutation(rows * count).astype(np.uint32),
        2: random.random(rows * count).astype(np.float32),
        3: to_bfloat16(random.normal(0, 1, (rows, hidden_size))),
        4: random.normal(0, 3, rows).astype(np.float32),
        5: random.normal(0, 2, (rows, hidden_size)).astype(np.float32),
    }


@pytest.mark.parametrize(("rows", "hidden_size", "count"), [(1, 2048, 8), (5, 257, 3), (3, 96, 8), (2, 511, 1)])
def test_combine_experts(rows: int, hidden_size: int, count: int) -> None:
    buffers = combine_inputs(rows, hidden_size, count)
    y, shared_y = from_bfloat16(buffers[0]).astype(np.float64), from_bfloat16(buffers[3]).astype(np.float64)
    weights = buffers[2].reshape(rows, count, 1).astype(np.float64)
    gate = 1 / (1 + np.exp(-buffers[4].astype(np.float64)))[:, None]
    places = buffers[1].reshape(rows, count)
    expected = buffers[5] + (weights * y[places]).sum(axis=1) + gate * shared_y
    scale = np.abs(buffers[5]) + (weights * np.abs(y[places])).sum(axis=1) + gate * np.abs(shared_y)
    results = []
    for device in [sim(checked=True), *[sim(**options) for options in ORDERS]]:
        hidden = buffers[5].copy()
        run(
            device,
            "combine_experts",
            {**buffers, 5: hidden},
            args=pack(rows, hidden_size, count),
            threadgroups=(-(-hidden_size // ARGS.kElementThreads), rows),
            threads=ARGS.kElementThreads,
        )
        results.append(hidden)
        # Float32 sums of at most 10 terms, each product rounded once, the sigmoid to a few ulp.
        assert (np.abs(hidden - expected) <= 16 * 2.0**-24 * scale).all()
        np.testing.assert_array_equal(hidden, results[0])


@pytest.mark.skipif(os.environ.get("LILY_TEST_DEVICE") == "cuda", reason="a GPU does not check ranges")
def test_a_short_output_is_reported() -> None:
    logits = np.random.default_rng(1).normal(0, 1, (3, 40)).astype(np.float32)
    short = {0: logits, 1: np.zeros((2, 4), np.int32), 2: np.zeros((3, 4), np.float32)}
    with pytest.raises(KernelError, match="route_rows"):
        run(sim(checked=True), "route_rows", short, args=pack(3, 40, 4, 1), threadgroups=(3,), threads=ARGS.kSimdWidth)
