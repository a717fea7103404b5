"""The checks of numbers that callers give: counts, lengths and limits, and real numbers."""

from __future__ import annotations

import math
import operator
from typing import Any

from lily.checks.quoting import quoted
from lily.errors import ConfigError, InvalidArgumentError, LilyError

__all__ = ["as_count", "real_number", "whole_number"]

_MOST = (1 << 63) - 1


def whole_number(
    name: str, value: int, least: int, most: int = _MOST, error_type: type[LilyError] = ConfigError
) -> int:
    """`value` as an int, if it is an integer (no bool) from `least` to `most`; by default the core's range.

    Raises
    ------
    ConfigError
        It is not; or an error of `error_type`.
    """
    try:
        number = least - 1 if type(value).__name__ in ("bool", "bool_") else operator.index(value)
    except Exception:  # whatever a value's own method raises
        number = least - 1
    if not least <= number <= most:
        limits = f"of at least {least:,}" if most == _MOST else f"from {least:,} to {most:,}"
        raise error_type(f"{name} must be a whole number {limits}, not {quoted(value)}")
    return number


def as_count(name: str, value: int) -> int:
    """`value` if it is a whole number of at least 0; otherwise InvalidArgumentError."""
    return whole_number(name, value, 0, error_type=InvalidArgumentError)


def real_number(
    name: str, value: Any, least: float, most: float = math.inf, error_type: type[LilyError] = InvalidArgumentError
) -> float:
    """`value` as a float, if it is a number (no bool, no text) from `least` to `most`, and not NaN.

    Raises
    ------
    InvalidArgumentError
        It is not; or an error of `error_type`.
    """
    try:
        number = math.nan if isinstance(value, (bool, str, bytes, bytearray)) else float(value)
    except Exception:  # whatever a value's own method raises
        number = math.nan
    if not least <= number <= most:
        limits = f"of at least {least:g}" if math.isinf(most) else f"from {least:g} to {most:g}"
        raise error_type(f"{name} must be a number {limits}, not {quoted(value)}")
    return number
