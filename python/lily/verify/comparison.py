"""Compares a kernel's result with the expected one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["BFLOAT_ROUNDING", "FLOAT_ROUNDING", "Comparison", "close", "equal", "rounded"]

Array = npt.NDArray[Any]

FLOAT_ROUNDING = 2.0**-23  # twice the error of one rounding to float32
BFLOAT_ROUNDING = 2.0**-8  # twice the error of one rounding to bfloat16


@dataclass(frozen=True)
class Comparison:
    """`worst` is the largest error in units of the allowed error; above 1 or NaN means that something is wrong."""

    what: str
    values: int
    worst: float

    @property
    def agrees(self) -> bool:
        """Whether every error is within the allowance."""
        return self.worst <= 1.0


def close(what: str, actual: Array, expected: Array, allowed: Array | float) -> Comparison:
    """Errors against an allowance of each value, or of all."""
    actual = np.asarray(actual, np.float64).reshape(-1)
    expected = np.asarray(expected, np.float64).reshape(-1)
    limits = np.broadcast_to(
        np.asarray(allowed, np.float64), expected.shape if np.ndim(allowed) == 0 else np.shape(allowed)
    )
    error = np.abs(actual - expected)
    ratios = np.where(error == 0, 0.0, error / np.maximum(limits.reshape(-1), 1e-300))
    same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
    ratios = np.where(same, 0.0, ratios)
    worst = float(np.max(ratios, initial=0.0))
    return Comparison(what, len(expected), float("inf") if np.isnan(ratios).any() else worst)


def equal(what: str, actual: Array, expected: Array) -> Comparison:
    """Integers, or bits, that must be the same."""
    wrong = int(np.count_nonzero(np.asarray(actual).reshape(-1) != np.asarray(expected).reshape(-1)))
    return Comparison(what, int(np.size(expected)), 0.0 if wrong == 0 else float("inf"))


def rounded(what: str, actual: Array, expected: Array, error: Array | float = 0.0) -> Comparison:
    """bfloat16 values whose exact ones are known to within `error`."""
    expected = np.asarray(expected, np.float64)
    margin = np.broadcast_to(np.asarray(error, np.float64), expected.shape)
    # The least normal number of bfloat16 times its rounding: below it, results may be flushed to zero.
    return close(what, actual, expected, margin + BFLOAT_ROUNDING * (np.abs(expected) + margin) + 2.0**-126)
