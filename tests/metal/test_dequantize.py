"""Whole matrices as bf16: every value rounded once, so compared bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from quantized import Matrix, random_matrix

from device_runner import pack, run, sim, to_bfloat16
from lily_args import ARGS


def dequantized(device: Any, matrix: Matrix) -> NDArray[np.uint16]:
    rows, columns = matrix.values.reshape(-1, matrix.values.shape[-1]).shape
    out = np.full((rows, columns), 0xFFFF, np.uint16)
    run(
        device,
        "dequantize_matrix",
        {**matrix.slots(0), 3: out},
        args=pack(0, rows, columns, 0, 0, 0, columns),
        threadgroups=(rows, -(-columns // ARGS.kElementThreads)),
        threads=ARGS.kElementThreads,
        constants=matrix.constants,
    )
    return out


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("rows", "columns", "group_size"), [(1, 32, 32), (7, 96, 32), (13, 320, 64), (5, 384, 128)])
def test_every_value(rows: int, columns: int, bits: int, group_size: int) -> None:
    matrix = random_matrix(np.random.default_rng([rows, columns, bits]), rows, columns, bits, group_size)
    out = dequantized(sim(), matrix)
    # scale * code is exact in float32; the sum with the bias is rounded to float32, then to bf16: as here.
    np.testing.assert_array_equal(out, to_bfloat16(matrix.values.astype(np.float32)))
    for options in ({"order": "reverse"}, {"order": "random", "seed": 2}, {"checked": True}):
        np.testing.assert_array_equal(dequantized(sim(**options), matrix), out)


def test_experts_follow_each_other() -> None:
    """A launch over the matrices of all experts."""
    matrix = random_matrix(np.random.default_rng(3), 6, 64, 4, 32, experts=5)
    expected = to_bfloat16(matrix.values.astype(np.float32)).reshape(30, 64)
    np.testing.assert_array_equal(dequantized(sim(), matrix), expected)
