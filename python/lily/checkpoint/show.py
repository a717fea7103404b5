"""What a file says, made safe and short enough to be part of an error."""

from __future__ import annotations

from collections.abc import Iterable

_LONGEST = 200  # characters
_LONGEST_PATH = 1000
_LISTED = 12


def show(text: object, longest: int = _LONGEST) -> str:
    """Text from a file, safe to print: control characters and lone surrogates escaped, long ones cut."""
    plain = str(text)
    if len(plain) > longest:
        plain = f"{plain[: longest // 2]}...{plain[3 - longest // 2 :]}"
    return plain if plain.isprintable() else repr(plain)[1:-1]


def show_path(path: object) -> str:
    """A path, safe to print; only the longest are cut."""
    return show(path, _LONGEST_PATH)


def show_value(value: object) -> str:
    """Any value of a JSON file, in short."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "an object"
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, str) and len(value) > _LONGEST:
        return f"{show(repr(value[:_LONGEST]))} (a string of {len(value)} characters)"
    return show(repr(value))


def show_names(names: Iterable[object]) -> str:
    """The first names of a list, and how many more there are."""
    every = list(names)
    listed = ", ".join(show(name) for name in every[:_LISTED])
    return listed if len(every) <= _LISTED else f"{listed} and {len(every) - _LISTED} more"


def reason(error: Exception) -> str:
    """What the operating system said, without the path that the message names already."""
    return getattr(error, "strerror", None) or str(error)
