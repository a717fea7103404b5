"""Matrix products for many rows, dense and grouped by expert, against float64 products of the same bf16 weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from quantized import Matrix, random_bfloat16, random_matrix

from device_runner import from_bfloat16, pack, run, sim, to_bfloat16
from lily_args import ARGS

TILE_COLUMNS, THREADS = ARGS.kTileColumns, ARGS.kTileThreads
STORE_DEFAULT, ACCUMULATE_FLOAT, STORE_FLOAT = ARGS.kStoreDefault, ARGS.kAccumulateFloat, ARGS.kStoreFloat
FORMATS = [(4, 32), (4, 64), (4, 128), (8, 32), (8, 64), (8, 128), (16, 64)]
ORDERS: list[dict[str, Any]] = [{"order": "reverse"}, {"order": "random", "seed": 5}]


def rounded(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The nearest bf16 values: what a tile holds of dequantized weights (their float32 sum is rounded only there)."""
    return from_bfloat16(to_bfloat16(values.astype(np.float32))).astype(np.float64)


def check(out: NDArray[Any], x: NDArray[np.uint16], weights: NDArray[np.float64], before: NDArray[Any] | None) -> None:
    """Compares out (bf16 bits or float32) with x W^T, plus `before`.

    Each of K fused steps, and the last addition, rounds once in float32: at most (K + 1) 2^-24 of the magnitudes' sum.
    Results in bf16 are rounded once more: half a step of 8 significant bits is at most 2^-8 of the value.
    """
    left = from_bfloat16(x).astype(np.float64)
    expected = left @ weights.T
    magnitudes = np.abs(left) @ np.abs(weights).T
    if before is not None:
        expected += before
        magnitudes += np.abs(before)
    error = (left.shape[1] + 1) * 2.0**-24 * magnitudes
    if out.dtype == np.uint16:
        error += 2.0**-8 * (np.abs(expected) + error)
        out = from_bfloat16(out)
    assert np.isfinite(out).all()
    worst = np.max(np.abs(out - expected) - error)
    assert worst <= 0, f"exceeds its bound by {worst}"


def dense(device: Any, tile_rows: int, x: NDArray[np.uint16], matrix: Matrix, mode: int, out: NDArray[Any]) -> None:
    """out [rows, stride >= rows_out] = x W^T."""
    rows, columns = x.shape
    rows_out = matrix.codes.shape[0]
    unused = dict.fromkeys(range(6, 10), x)
    run(
        device,
        f"gemm_affine_m{tile_rows}",
        {**matrix.slots(0), 3: x, 4: out, **unused},
        args=pack(rows, rows_out, columns, 0, 0, 0, out.shape[1]),
        args_slot=5,
        threadgroups=(-(-rows_out // TILE_COLUMNS), -(-rows // tile_rows)),
        threads=THREADS,
        constants={**matrix.constants, ARGS.kAccumulateIndex: mode, ARGS.kGroupedIndex: 0},
    )


def random_product(rows: int, rows_out: int, columns: int, bits: int, group_size: int) -> tuple[Any, Matrix]:
    rng = np.random.default_rng([rows, rows_out, columns, bits, group_size])
    return random_bfloat16(rng, (rows, columns)), random_matrix(rng, rows_out, columns, bits, group_size)


@pytest.mark.parametrize(("bits", "group_size"), FORMATS)
@pytest.mark.parametrize(("tile_rows", "rows", "rows_out"), [(16, 1, 65), (16, 17, 5), (32, 45, 70), (64, 77, 129)])
def test_formats(tile_rows: int, rows: int, rows_out: int, bits: int, group_size: int) -> None:
    columns = 3 * group_size  # with groups of 32: half a step remains
    x, matrix = random_product(rows, rows_out, columns, bits, group_size)
    out = np.full((rows, rows_out), 0xFFFF, np.uint16)
    dense(sim(), tile_rows, x, matrix, STORE_DEFAULT, out)
    check(out, x, rounded(matrix.values), None)


@pytest.mark.parametrize("columns", [2, 20, 66, 104, 130])
def test_plain_matrices_have_any_even_number_of_columns(columns: int) -> None:
    x, matrix = random_product(18, 67, columns, 16, 64)
    out = np.full((18, 67), 0xFFFF, np.uint16)
    dense(sim(), 32, x, matrix, STORE_DEFAULT, out)
    check(out, x, matrix.values, None)


@pytest.mark.parametrize("mode", [STORE_DEFAULT, ACCUMULATE_FLOAT, STORE_FLOAT])
@pytest.mark.parametrize(("rows_out", "beyond"), [(34, 2), (67, 2), (67, 3), (34, 3)])
def test_output_modes(mode: int, rows_out: int, beyond: int) -> None:
    """Rows of out further apart than they are long; even and odd strides are written differently, odd edges, too."""
    rows, columns, stride = 35, 96, rows_out + beyond
    x, matrix = random_product(rows, rows_out, columns, 4, 32)
    rng = np.random.default_rng(rows_out)
    before = rng.normal(0.0, 30.0, (rows, stride)).astype(np.float32)
    out = to_bfloat16(before) if mode == STORE_DEFAULT else before.copy()
    kept = out[:, rows_out:].copy()
    dense(sim(), 32, x, matrix, mode, out)
    added = before[:, :rows_out].astype(np.float64) if mode == ACCUMULATE_FLOAT else None
    check(out[:, :rows_out], x, rounded(matrix.values), added)
    np.testing.assert_array_equal(out[:, rows_out:], kept)


@pytest.mark.parametrize("tile_rows", [16, 32, 64])
def test_thread_orders_and_checks(tile_rows: int) -> None:
    """The same bits in any order of threads, and from the checked device, whose tiles are simdgroup matrices."""
    bits, group_size = {16: (4, 32), 32: (8, 64), 64: (16, 64)}[tile_rows]
    x, matrix = random_product(tile_rows + 3, 66, 128 if bits == 8 else 96, bits, group_size)
    expected = np.full((tile_rows + 3, 66), 7.0, np.float32)
    dense(sim(), tile_rows, x, matrix, ACCUMULATE_FLOAT, expected)
    for options in [*ORDERS, {"checked": True}]:
        out = np.full_like(expected, 7.0)
        dense(sim(**options), tile_rows, x, matrix, ACCUMULATE_FLOAT, out)
        np.testing.assert_array_equal(out, expected)


@dataclass
class Groups:
    """Assignments of rows to experts, as the routing kernels lay them out."""

    offsets: NDArray[np.uint32]  # [experts + 1]
    block_map: NDArray[np.int32]  # [most blocks, 2]
    block_count: NDArray[np.uint32]  # [1]
    row_of: NDArray[np.uint32]  # [assignments]


def group_rows(rng: np.random.Generator, counts: list[int], rows: int, tile_rows: int) -> Groups:
    """Groups of these sizes of random rows, in the largest block map: what is past the blocks points nowhere."""
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.uint32)
    blocks = [(expert, first) for expert, count in enumerate(counts) for first in range(0, count, tile_rows)]
    block_map = np.full((sum(counts) // tile_rows + len(counts), 2), 0x7FFFFFFF, np.int32)
    block_map[: len(blocks)] = blocks
    row_of = rng.integers(0, rows, sum(counts)).astype(np.uint32)
    return Groups(offsets, block_map, np.array([len(blocks)], np.uint32), row_of)


def grouped(device: Any, tile_rows: int, x: NDArray[np.uint16], matrix: Matrix, groups: Groups, gather: bool) -> Any:
    """bf16 bits [assignments, rows_out]: each expert's rows times that expert's matrix."""
    rows_out = matrix.codes.shape[1]
    out = np.full((len(groups.row_of), rows_out), 0xFFFF, np.uint16)
    run(
        device,
        f"gemm_affine_m{tile_rows}",
        {**matrix.slots(0), 3: x, 4: out, 6: groups.offsets, 7: groups.block_map, 8: groups.block_count}
        | {9: groups.row_of},
        args=pack(len(out), rows_out, x.shape[1], int(gather), matrix.expert_words, matrix.expert_scales, rows_out),
        args_slot=5,
        threadgroups=(-(-rows_out // TILE_COLUMNS), len(groups.block_map)),
        threads=THREADS,
        constants={**matrix.constants, ARGS.kAccumulateIndex: STORE_DEFAULT, ARGS.kGroupedIndex: 1},
    )
    return out


@pytest.mark.parametrize("gather", [True, False])
@pytest.mark.parametrize(
    ("tile_rows", "bits", "group_size", "columns"),
    [(16, 4, 64, 128), (32, 4, 32, 96), (32, 8, 32, 32), (64, 8, 128, 128), (64, 4, 64, 64), (32, 16, 64, 52)],
)
def test_grouped_by_expert(tile_rows: int, bits: int, group_size: int, columns: int, gather: bool) -> None:
    rng = np.random.default_rng([tile_rows, bits, columns, gather])
    counts = [tile_rows + 1, 0, 1, tile_rows, 0, 7]
    groups = group_rows(rng, counts, 19, tile_rows)
    x = random_bfloat16(rng, (19 if gather else len(groups.row_of), columns))
    matrix = random_matrix(rng, 67, columns, bits, group_size, experts=len(counts))
    out = grouped(sim(), tile_rows, x, matrix, groups, gather)
    read = x[groups.row_of] if gather else x
    for expert in range(len(counts)):
        places = slice(groups.offsets[expert], groups.offsets[expert + 1])
        if counts[expert]:
            check(out[places], read[places], rounded(matrix.values[expert]), None)


def test_grouped_thread_orders_and_checks() -> None:
    rng = np.random.default_rng(11)
    groups = group_rows(rng, [3, 0, 18], 9, 16)
    x, matrix = random_bfloat16(rng, (9, 96)), random_matrix(rng, 66, 96, 4, 32, experts=3)
    expected = grouped(sim(), 16, x, matrix, groups, True)
    for options in [*ORDERS, {"checked": True}]:
        np.testing.assert_array_equal(grouped(sim(**options), 16, x, matrix, groups, True), expected)
