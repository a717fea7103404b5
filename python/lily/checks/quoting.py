"""Values, texts, paths and names as error texts show them: short, and safe to print."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable
from typing import Any

__all__ = ["quoted", "quoted_json", "quoted_names", "quoted_path", "quoted_text", "reason"]

_LONGEST_VALUE = 120  # characters
_LONGEST_TEXT = 200
_LONGEST_PATH = 1000
_LISTED = 12

_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = _LONGEST_VALUE
_repr.maxlevel = 3


def quoted(value: Any) -> str:
    """`repr(value)` in at most 120 characters; the type's name if that fails."""
    try:
        text = _repr.repr(value)
    except Exception:  # a value's own method, or an integer of thousands of digits
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 3]}..."


def quoted_text(text: object, longest: int = _LONGEST_TEXT) -> str:
    """Text from a file without quotes: control characters and lone surrogates escaped, long ones cut."""
    plain = str(text)
    if len(plain) > longest:
        plain = f"{plain[: longest // 2]}...{plain[3 - longest // 2 :]}"
    return plain if plain.isprintable() else repr(plain)[1:-1]


def quoted_path(path: object) -> str:
    """A path without quotes; only the longest are cut."""
    return quoted_text(path, _LONGEST_PATH)


def quoted_json(value: object) -> str:
    """Any value of a JSON file, in short and in JSON's words."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "an object"
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, str) and len(value) > _LONGEST_TEXT:
        return f"{quoted_text(repr(value[:_LONGEST_TEXT]))} (a string of {len(value)} characters)"
    return quoted_text(repr(value))


def quoted_names(names: Iterable[object]) -> str:
    """The first names of a list, and how many more there are."""
    every = list(names)
    listed = ", ".join(quoted_text(name) for name in every[:_LISTED])
    return listed if len(every) <= _LISTED else f"{listed} and {len(every) - _LISTED} more"


def reason(error: Exception) -> str:
    """What the operating system said, without the path that the message names already."""
    return getattr(error, "strerror", None) or str(error)
