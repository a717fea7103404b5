"""The checks of arguments other than numbers: flags, lists, texts from a few, paths, callables."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lily.checks.quoting import quoted
from lily.errors import InvalidArgumentError, LilyError

__all__ = ["as_flag", "as_items", "as_path", "as_stream", "check_callable", "check_text", "one_of"]

_MOST_ITEMS = 1 << 20  # items of any list but token ids; a range may claim more than fits in memory


def as_flag(name: str, value: Any) -> bool:
    """True or False; also accepts None, 0 and 1.

    Raises
    ------
    InvalidArgumentError
        It is something else, such as a text.
    """
    if value is None or isinstance(value, (bool, np.bool_)) or (type(value) is int and value in (0, 1)):
        return bool(value)
    raise InvalidArgumentError(f"{name} must be True or False, not {quoted(value)}")


def as_items(
    name: str, value: Any, what: str, error_type: type[LilyError] = InvalidArgumentError, hint: str = ""
) -> list[Any]:
    """The items of a collection as a list; texts and mappings do not count as collections.

    Raises
    ------
    InvalidArgumentError
        It is not a collection, or has more than a million items; or an error of `error_type`.
    """
    items = list(itertools.islice(as_stream(name, value, what, error_type, hint), _MOST_ITEMS + 1))
    if len(items) > _MOST_ITEMS:
        raise error_type(f"{name} must be {what} of at most {_MOST_ITEMS:,} items")
    return items


def as_stream(
    name: str, value: Any, what: str, error_type: type[LilyError] = InvalidArgumentError, hint: str = ""
) -> Iterator[Any]:
    """Like `as_items`, one at a time."""
    try:
        items: Iterator[Any] | None = None if isinstance(value, (str, bytes, bytearray, Mapping)) else iter(value)
    except TypeError:
        items = None
    if items is None:
        raise error_type(f"{name} must be {what}, not {hint or quoted(value)}")
    return items


def as_path(name: str, value: Any, error_type: type[LilyError] = InvalidArgumentError) -> Path:
    """A path to use with the system; a leading ``~`` is the user's home, as in a shell.

    Raises
    ------
    InvalidArgumentError
        It is not a path, or has characters that a path cannot have; or an error of `error_type`.
    """
    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    try:
        usable = isinstance(text, str) and b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        usable = False
    if not usable:
        raise error_type(f"{name} must be a path, not {quoted(value)}")
    path = Path(os.path.expanduser(str(text)))  # noqa: PTH111 -- Path drops the ./ of ./~, and raises for ~nobody
    return Path.cwd() / path if str(path).startswith("~") else path  # so that a second call changes nothing


def one_of(name: str, value: Any, choices: Sequence[str], error_type: type[LilyError] = InvalidArgumentError) -> str:
    """The text, if it is one of the choices.

    Raises
    ------
    InvalidArgumentError
        It is not; or an error of `error_type`.
    """
    if not isinstance(value, str) or value not in choices:
        listed = ", ".join(f'"{choice}"' for choice in choices[:-1])
        raise error_type(f'{name} must be {listed} or "{choices[-1]}", not {quoted(value)}')
    return str(value)


def check_text(name: str, value: Any, error_type: type[LilyError] = InvalidArgumentError) -> None:
    """Raise InvalidArgumentError, or `error_type`, unless this is text that UTF-8 can encode."""
    try:
        if isinstance(value, str):
            value.encode()
            return
    except UnicodeEncodeError:
        pass
    raise error_type(f"{name} must be a string, not {quoted(value)}")


def check_callable(name: str, value: Any) -> None:
    """Raise InvalidArgumentError unless this is callable or None."""
    if value is not None and not callable(value):
        raise InvalidArgumentError(f"{name} must be callable, not {type(value).__name__}")
