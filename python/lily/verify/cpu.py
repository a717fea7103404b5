"""The matrix products of the CPU backend, for every instruction set of this processor, on random data."""

from __future__ import annotations

import numpy as np

from lily import _core
from lily.verify.comparison import FLOAT_ROUNDING, close
from lily.verify.kernels import KernelCheck
from lily.verify.values import affine_rows, round_bfloat

__all__ = ["check_products"]

ROWS, COLUMNS, TOKENS, GROUP = 67, 384, 9, 64
FIXED_POINT = 2.0**-14  # relative to the largest activation of a group: the error of its 16 bits


def check_products() -> list[KernelCheck]:
    """One check for each instruction set and format."""
    checks = []
    for isa in _core.available_isas():
        for name, bits in (("affine4", 4), ("affine8", 8), ("plain", 16)):
            checks.append(_check(isa, name, bits))
    return checks


def _check(isa: str, name: str, bits: int) -> KernelCheck:
    random = np.random.default_rng(bits)
    x = random.standard_normal((TOKENS, COLUMNS)).astype(np.float32)
    if bits == 16:
        values = round_bfloat(random.standard_normal((ROWS, COLUMNS)).astype(np.float32))
        codes = (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8).reshape(-1)
        scales = biases = np.zeros(0, np.uint8)
    else:
        codes = random.integers(0, 256, ROWS * COLUMNS * bits // 8, dtype=np.uint8)
        scales, biases = (
            (round_bfloat(factor * random.standard_normal(ROWS * COLUMNS // GROUP).astype(np.float32)).view(np.uint32)
             >> 16).astype(np.uint16).view(np.uint8)
            for factor in (2.0**-bits, 1.0)
        )  # fmt: skip
    out = np.empty((TOKENS, ROWS), np.float32)
    _core.kernels.multiply(
        isa, _core.MatrixFormat[name], _core.ElementType.bfloat16, 0 if bits == 16 else GROUP, codes, scales, biases,
        x, out,
    )  # fmt: skip
    matrix = affine_rows(
        (codes.tobytes(), scales.tobytes(), biases.tobytes()), {0: bits, 1: GROUP}, COLUMNS, np.arange(ROWS)
    ).astype(np.float64)
    expected = x.astype(np.float64) @ matrix.T
    lost = FIXED_POINT * np.abs(x).max() * np.abs(matrix).sum(1)
    allowed = lost + FLOAT_ROUNDING * COLUMNS * (np.abs(x).astype(np.float64) @ np.abs(matrix).T)
    comparison = close("result", out, expected, allowed)
    problem = "" if comparison.agrees else f"{comparison.worst:.3g} times the error that rounding accounts for"
    return KernelCheck(f"multiply {name} ({isa})", {}, 1, comparison.values, comparison.worst, problem)
