"""gemv_segments against float64 products, in every format, with and without norm and accumulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from quantized import Matrix, random_bfloat16, random_matrix

from device_runner import from_bfloat16, pack, run, sim
from lily_args import ARGS

BFLOAT, RESIDUAL = ARGS.kBfloatVector, ARGS.kResidualVector
# Rows of a threadgroup, by how its simdgroups share the work.
GROUP_ROWS = {ARGS.kWholeRows: ARGS.kGemvRows, ARGS.kSharedColumns: ARGS.kSplitRows}
each_vector = pytest.mark.parametrize("vector", [BFLOAT, RESIDUAL], ids=["bfloat", "residual"])
each_sharing = pytest.mark.parametrize("sharing", GROUP_ROWS, ids=["whole rows", "shared columns"])
EPS = 1e-6
# A sum passes through at most 64 roundings of float32 (2^-24 each): up to 16 products and 4 sums in a lane's part, the
# bias's, up to 16 parts, 5 levels between lanes, the norm's factor, the addition to the output. Their directions are
# random, so that they add up to 8 of them at most in practice.
ROUNDING = 2.0**-21
FORMATS = [(4, 32), (4, 64), (4, 128), (8, 32), (8, 64), (8, 128), (16, 64)]


@dataclass
class Case:
    """Matrices of one format, the vector that they are multiplied with, and what is expected of them."""

    matrices: list[Matrix]
    x: NDArray[Any]
    norm_weight: NDArray[np.float32]
    vector: int
    sharing: int
    accumulate: bool
    before: list[NDArray[np.float32]]

    @property
    def normalized(self) -> NDArray[np.float64]:
        """The vector as float64, after the norm."""
        if self.vector == BFLOAT:
            return from_bfloat16(self.x).astype(np.float64)
        x = self.x.astype(np.float64)
        return x / np.sqrt(np.mean(x**2) + EPS) * self.norm_weight

    def run(self, device: Any) -> list[NDArray[np.float32]]:
        count, first = len(self.matrices), self.matrices[0]
        outputs = [before.copy() for before in self.before]
        buffers: dict[int, NDArray[Any]] = {12: self.x, 13: self.norm_weight if self.vector == RESIDUAL else self.x}
        for s in range(4):
            buffers.update(self.matrices[s if s < count else 0].slots(3 * s))
            buffers[14 + s] = outputs[s if s < count else 0]
        rows = [matrix.codes.shape[0] for matrix in self.matrices]
        columns = self.matrices[0].values.shape[1]
        run(
            device,
            "gemv_segments",
            buffers,
            args=pack(count, columns, EPS, *rows, *[0] * (4 - count)),
            threadgroups=(sum(-(-r // GROUP_ROWS[self.sharing]) for r in rows),),
            threads=ARGS.kGemvThreads,
            constants={
                **first.constants,
                ARGS.kVectorTypeIndex: self.vector,
                ARGS.kColumnSharingIndex: self.sharing,
                ARGS.kAccumulateIndex: ARGS.kAccumulateFloat if self.accumulate else ARGS.kStoreDefault,
            },
        )
        return outputs

    def check(self, outputs: list[NDArray[np.float32]]) -> None:
        x = self.normalized
        for matrix, before, out in zip(self.matrices, self.before, outputs, strict=True):
            expected = matrix.values @ x + (before if self.accumulate else 0.0)
            bound = ROUNDING * (matrix.magnitudes @ np.abs(x) + (np.abs(before) if self.accumulate else 0.0))
            assert np.all(np.abs(out - expected) <= bound)


def make_case(
    rows: Sequence[int],
    columns: int,
    bits: int,
    group_size: int,
    vector: int,
    sharing: int,
    accumulate: bool = False,
    seed: int = 0,
) -> Case:
    rng = np.random.default_rng([seed, columns, bits, group_size, *rows])
    x = (
        rng.normal(0.5, 3.0, columns).astype(np.float32)
        if vector == RESIDUAL
        else random_bfloat16(rng, (columns,), 3.0)
    )
    norm_weight = rng.normal(1.0, 0.3, columns).astype(np.float32)
    matrices = [random_matrix(rng, r, columns, bits, group_size) for r in rows]
    before = [rng.normal(0.0, 2.0, r).astype(np.float32) for r in rows]
    return Case(matrices, x, norm_weight, vector, sharing, accumulate, before)


@pytest.mark.parametrize("accumulate", [False, True])
@each_vector
@each_sharing
@pytest.mark.parametrize(("bits", "group_size"), FORMATS)
def test_formats_and_modes(bits: int, group_size: int, vector: int, sharing: int, accumulate: bool) -> None:
    case = make_case([13, 1, 16, 38], 384, bits, group_size, vector, sharing, accumulate)
    case.check(case.run(sim()))


@each_sharing
@pytest.mark.parametrize("rows", [[1], [3, 17], [16, 16, 16], [33, 2, 5, 1]])
def test_every_number_of_segments(rows: list[int], sharing: int) -> None:
    case = make_case(rows, 192, 4, 64, RESIDUAL, sharing)
    case.check(case.run(sim()))


# 4-bit rows of 1,024 columns and more take another path than shorter ones; a normalized vector of more than 2,048
# columns is staged in parts; 1,056, 1,152 and 2,080 leave lanes without columns in the last step.
@each_vector
@each_sharing
@pytest.mark.parametrize(
    ("columns", "bits", "group_size"),
    [
        (32, 4, 32),
        (992, 4, 32),
        (1024, 4, 64),
        (1056, 4, 32),
        (1152, 4, 128),
        (4096, 4, 64),
        (32, 8, 32),
        (2080, 8, 32),
    ],
)
def test_columns_of_quantized_rows(columns: int, bits: int, group_size: int, vector: int, sharing: int) -> None:
    case = make_case([11], columns, bits, group_size, vector, sharing)
    case.check(case.run(sim()))


# Rows that are not a multiple of 16 bytes long are read in words.
@each_vector
@each_sharing
@pytest.mark.parametrize("columns", [2, 8, 30, 66, 264, 1030, 2056])
def test_columns_of_plain_rows(columns: int, vector: int, sharing: int) -> None:
    case = make_case([7, 9], columns, 16, 64, vector, sharing)
    case.check(case.run(sim()))


@each_sharing
@pytest.mark.parametrize("scale", [0.0, 1e-8, 3e-4, 1e-3, 1e4])
@pytest.mark.parametrize(
    ("columns", "bits", "group_size"), [(256, 4, 64), (2112, 4, 64), (96, 8, 32), (264, 16, 64), (66, 16, 64)]
)
def test_residuals_of_any_magnitude(columns: int, bits: int, group_size: int, scale: float, sharing: int) -> None:
    """The norm's eps is nothing beside large residuals, much beside small ones, and all there is beside zeros."""
    case = make_case([9], columns, bits, group_size, RESIDUAL, sharing)
    case.x *= np.float32(scale)
    case.check(case.run(sim()))


@each_sharing
@pytest.mark.parametrize(
    ("columns", "bits", "group_size"), [(2112, 4, 64), (320, 4, 32), (544, 8, 32), (264, 16, 64), (66, 16, 64)]
)
def test_order_of_threads_does_not_matter(columns: int, bits: int, group_size: int, sharing: int) -> None:
    case = make_case([13, 5], columns, bits, group_size, RESIDUAL, sharing, accumulate=True)
    forward = case.run(sim(order="forward"))
    for other in (sim(order="reverse"), sim(order="random", seed=3)):
        for left, right in zip(forward, case.run(other), strict=True):
            assert np.array_equal(left.view(np.uint32), right.view(np.uint32))


@each_vector
@each_sharing
@pytest.mark.parametrize(
    ("columns", "bits", "group_size"), [(2080, 4, 32), (320, 4, 64), (544, 8, 32), (264, 16, 64), (66, 16, 64)]
)
def test_stays_inside_its_buffers(columns: int, bits: int, group_size: int, vector: int, sharing: int) -> None:
    case = make_case([13, 1, 5], columns, bits, group_size, vector, sharing, accumulate=True)
    case.check(case.run(sim(checked=True)))
