"""whole_number: the check of counts, lengths and limits that callers give."""

from __future__ import annotations

import operator

from lily.errors import ConfigError, LilyError

__all__ = ["whole_number"]

_MOST = (1 << 63) - 1


def whole_number(
    name: str, value: int, least: int, most: int = _MOST, error_type: type[LilyError] = ConfigError
) -> int:
    """`value` as an int, if it is an integer (no bool) from `least` to `most`; by default what the core can hold.

    Raises
    ------
    ConfigError
        It is not; or an error of `error_type`.
    """
    try:
        number = least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = least - 1
    if not least <= number <= most:
        limits = f"of at least {least:,}" if most == _MOST else f"from {least:,} to {most:,}"
        raise error_type(f"{name} must be a whole number {limits}, not {value!r}")
    return number
