"""quoted: a value as error texts show it, always short."""

from __future__ import annotations

import reprlib
from typing import Any

__all__ = ["quoted"]

_LENGTH = 120  # characters

_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = _LENGTH
_repr.maxlevel = 3


def quoted(value: Any) -> str:
    """`repr(value)` in at most 120 characters; the type's name if that fails."""
    try:
        text = _repr.repr(value)
    except Exception:  # a value's own method, or an integer of thousands of digits
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= _LENGTH else f"{text[: _LENGTH - 3]}..."
