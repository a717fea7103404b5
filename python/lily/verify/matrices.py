"""References of the kernels that multiply or look up rows of matrices; samples of large results are checked."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lily.verify.comparison import FLOAT_ROUNDING, Comparison, close, rounded
from lily.verify.formulas import rms_normalized, sigmoid, silu
from lily.verify.function_constants import ACCUMULATE, ACCUMULATE_FLOAT, GROUPED, STORE_DEFAULT, VECTOR_TYPE
from lily.verify.values import Arguments, Constants, Slots, affine_rows, bfloats, floats, integers, round_bfloat, words

__all__ = [
    "dequantize_matrix",
    "embed_rows",
    "expert_down",
    "expert_gate_up",
    "expert_gemv",
    "gemm_affine",
    "gemv_segments",
]

Array = npt.NDArray[Any]

GEMM = "rows rows_out columns gather_rows expert_words expert_scales out_stride"
EXPERTS = "hidden_size intermediate shared_intermediate experts_per_token eps:f expert_words expert_scales"
SAMPLED_ROWS = 64


def sample(count: int, wanted: int = SAMPLED_ROWS) -> npt.NDArray[np.int64]:
    """The first, the last and random ones of `count` indices, ascending."""
    if count <= wanted:
        return np.arange(count)
    chosen = np.random.default_rng(count).choice(count, wanted - 2, replace=False)
    return np.unique(np.concatenate([chosen, [0, count - 1]]))


def normalized(x: bytes, weight: bytes, eps: float) -> Array:
    """The f32 residual, RMS-normalised with a weight."""
    return rms_normalized(floats(x), floats(weight), eps)


def product(matrix: Array, x: Array) -> tuple[Array, Array]:
    """matrix x^T and its possible float32 error: one rounding per element, of the sum of magnitudes."""
    matrix, x = matrix.astype(np.float64), x.astype(np.float64)
    error = FLOAT_ROUNDING * (64 + np.sqrt(matrix.shape[1])) * (np.abs(matrix) @ np.abs(x).T)
    return matrix @ x.T, error


def matrix_rows(
    before: Slots,
    slot: int,
    constants: Constants,
    columns: int,
    rows: Array,
    *,
    expert: tuple[int, int, int] = (0, 0, 0),
) -> Array:
    """Rows of the matrix in three slots; `expert`: its number, and words and scales from one to the next."""
    number, stack_words, stack_scales = expert
    return affine_rows(
        (before[slot], before[slot + 1], before[slot + 2]),
        constants,
        columns,
        rows,
        word_offset=number * stack_words,
        scale_offset=number * stack_scales,
    )


def embed_rows(constants: Constants, before: Slots, after: Slots, data: bytes) -> list[Comparison]:
    args = Arguments(data, "rows hidden_size vocab_size")
    ids = integers(before[0])[: args.rows]
    inside = (ids >= 0) & (ids < args.vocab_size)
    rows = matrix_rows(before, 1, constants, args.hidden_size, np.where(inside, ids, 0))
    expected = rows * inside[:, None]
    actual = floats(after[4])[: expected.size].reshape(expected.shape)
    return [close("rows", actual, expected, 2 * FLOAT_ROUNDING * (np.abs(expected) + 1e-30))]


def gemv_segments(constants: Constants, before: Slots, after: Slots, data: bytes) -> list[Comparison]:
    args = Arguments(data, "segments columns eps:f rows:4")
    x = normalized(before[12], before[13], args.eps) if constants[VECTOR_TYPE] else bfloats(before[12])[: args.columns]
    comparisons = []
    for segment in range(args.segments):
        rows = sample(args.rows[segment])
        matrix = matrix_rows(before, 3 * segment, constants, args.columns, rows)
        expected, error = product(matrix, x[None])
        result, error = expected[:, 0], error[:, 0]
        if constants[ACCUMULATE] == ACCUMULATE_FLOAT:
            old = floats(before[14 + segment])[rows]
            result, error = result + old, error + FLOAT_ROUNDING * (np.abs(old) + np.abs(result))
        comparisons.append(close(f"segment {segment}", floats(after[14 + segment])[rows], result, error))
    return comparisons


def dequantize_matrix(constants: Constants, before: Slots, after: Slots, data: bytes) -> list[Comparison]:
    args = Arguments(data, GEMM)
    rows = sample(args.rows_out)
    expected = matrix_rows(before, 0, constants, args.columns, rows)
    actual = bfloats(after[3]).reshape(args.rows_out, args.columns)[rows]
    return [rounded("rows", actual, expected, 2 * FLOAT_ROUNDING * np.abs(expected))]


def _gemm_rows(constants: Constants, before: Slots, args: Arguments) -> tuple[Array, Array]:
    """Checked places of the result, and the expert of each."""
    if not constants[GROUPED]:
        places = sample(args.rows, 24)
        return places, np.zeros(len(places), np.int64)
    offsets = words(before[6])
    places = sample(int(offsets[-1]), 24)
    return places, np.searchsorted(offsets, places, side="right") - 1


def gemm_affine(constants: Constants, before: Slots, after: Slots, data: bytes) -> list[Comparison]:
    args = Arguments(data, GEMM)
    places, experts = _gemm_rows(constants, before, args)
    columns = sample(args.rows_out)
    from_row = words(before[9])[places] if constants[GROUPED] and args.gather_rows else places
    x = bfloats(before[3])[: (int(from_row.max()) + 1) * args.columns].reshape(-1, args.columns)
    expected, error = np.zeros((2, len(places), len(columns)))
    for expert in np.unique(experts):
        matrix = matrix_rows(
            before,
            0,
            constants,
            args.columns,
            columns,
            expert=(int(expert), args.expert_words, args.expert_scales),
        )
        # The kernel rounds the matrix to bfloat16 before it multiplies.
        mine = experts == expert
        result, margin = product(round_bfloat(matrix), x[from_row[mine]])
        expected[mine], error[mine] = result.T, margin.T
    at = places[:, None] * args.out_stride + columns
    if constants[ACCUMULATE] == STORE_DEFAULT:
        return [rounded("result", bfloats(after[4])[at], expected, error)]
    if constants[ACCUMULATE] == ACCUMULATE_FLOAT:
        old = floats(before[4])[at]
        expected, error = expected + old, error + FLOAT_ROUNDING * (np.abs(old) + np.abs(expected))
    return [close("result", floats(after[4])[at], expected, error)]


def _gated(gate: tuple[Array, Array], up: tuple[Array, Array]) -> tuple[Array, Array]:
    """silu(gate) * up, and its error from both errors; silu's slope is below 1.1."""
    activated = silu(gate[0])
    error = 1.1 * gate[1] * np.abs(up[0]) + np.abs(activated) * up[1] + 8 * FLOAT_ROUNDING * np.abs(activated * up[0])
    return activated * up[0], error


def expert_gate_up(constants: Constants, before: Slots, after: Slots, data: bytes) -> list[Comparison]:
    args = Arguments(data, EXPERTS)
    x = normalized(before[12], before[13], args.eps)[None]
    rows = sample(args.intermediate)
    result = bfloats(after[15]).reshape(-1, args.intermediate)
    comparisons = []
    for place, expert in enumerate(integers(before[14])[: args.experts_per_token]):
        place_in_stack = (int(expert), args.expert_words, args.expert_scales)
        gate, up = (
            product(matrix_rows(before, s, constants, args.hidden_size, rows, expert=place_in_stack), x) for s in (0, 3)
        )
        expected, error = _gated(gate, up)
        comparisons.append(rounded(f"expert {expert}", result[place][rows], expected[:, 0], error[:, 0]))
    rows = sample(args.shared_intermediate)
    gate, up = (product(matrix_rows(before, s, constants, args.hidden_size, rows), x) for s in (6, 9))
    expected, error = _gated(gate, up)
    return [*comparisons, rounded("shared expert", bfloats(after[16])[rows], expected[:, 0], error[:, 0])]


def expert_down(constants: Constants, before: Slots, after: Slots, data: bytes) -> list[Comparison]:
    args = Arguments(data, EXPERTS)
    rows = sample(args.hidden_size)
    inputs = bfloats(before[6]).reshape(-1, args.intermediate)
    expected = floats(before[11])[rows].astype(np.float64)
    error = FLOAT_ROUNDING * (args.experts_per_token + 2) * np.abs(expected)
    for place, expert in enumerate(integers(before[8])[: args.experts_per_token]):
        matrix = matrix_rows(
            before,
            0,
            constants,
            args.intermediate,
            rows,
            expert=(int(expert), args.expert_words, args.expert_scales),
        )
        result, margin = product(matrix, inputs[place][None])
        weight = float(floats(before[9])[place])
        expected = expected + weight * result[:, 0]
        error = error + abs(weight) * (margin[:, 0] + 8 * FLOAT_ROUNDING * np.abs(result[:, 0]))
    matrix = matrix_rows(before, 3, constants, args.shared_intermediate, rows)
    result, margin = product(matrix, bfloats(before[7])[None, : args.shared_intermediate])
    weight = float(sigmoid(floats(before[10])[:1].astype(np.float64))[0])
    expected = expected + weight * result[:, 0]
    error = error + weight * margin[:, 0] + 16 * FLOAT_ROUNDING * np.abs(result[:, 0])
    return [close("hidden", floats(after[11])[rows], expected, error)]


def expert_gemv(constants: Constants, before: Slots, after: Slots, data: bytes) -> list[Comparison]:
    args = Arguments(data, "rows columns experts_per_token eps:f expert_words expert_scales")
    rows = sample(args.rows)
    result = bfloats(after[6]).reshape(-1, args.rows)
    inputs = None if constants[VECTOR_TYPE] else bfloats(before[3]).reshape(-1, args.columns)
    comparisons = []
    for place, expert in enumerate(integers(before[5])[: args.experts_per_token]):
        x = normalized(before[3], before[4], args.eps) if inputs is None else inputs[place]
        matrix = matrix_rows(
            before,
            0,
            constants,
            args.columns,
            rows,
            expert=(int(expert), args.expert_words, args.expert_scales),
        )
        expected, error = product(matrix, x[None])
        comparisons.append(rounded(f"expert {expert}", result[place][rows], expected[:, 0], error[:, 0]))
    return comparisons
