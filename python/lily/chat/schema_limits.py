"""Limits of JSON that Lily walks through: schemas, tool definitions, values that a model writes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from lily.errors import InvalidArgumentError

__all__ = ["MAX_LEVELS", "MAX_VALUES", "check_json", "is_within_levels"]

MAX_LEVELS = 100  # of arrays and objects inside each other
MAX_VALUES = 100_000  # in one schema or definition, keys not counted
_MAX_INTEGER_BITS = 2048


def check_json(value: Any, name: str) -> None:
    """Refuse values that are not JSON or too large. Looks at `MAX_VALUES` values at most.

    Parameters
    ----------
    value
        Mappings, lists, tuples, strings, numbers, booleans and None.
    name
        What it is, for the message.

    Raises
    ------
    InvalidArgumentError
        It contains something else, too many values, or more than `MAX_LEVELS` levels.
    """
    level, levels, values = [value], 0, 1
    while level:
        below: list[Any] = []
        for item in level:
            if item is None or isinstance(item, (str, bool)):
                continue
            if isinstance(item, (int, float)):
                _check_number(item, name)
                continue
            children = _children(item, name)
            values += len(children)
            if values > MAX_VALUES:
                raise InvalidArgumentError(f"{name} is too large: it has more than {MAX_VALUES} values")
            below.append(item)
        if below:
            levels += 1
            if levels > MAX_LEVELS:
                raise InvalidArgumentError(f"{name} is nested too deeply: more than {MAX_LEVELS} levels")
        level = [child for item in below for child in _children(item, name)]


def is_within_levels(value: Any) -> bool:
    """Whether parsed JSON has no more than `MAX_LEVELS` levels."""
    level, levels = [value], 0
    while level := [item for item in level if isinstance(item, (dict, list))]:
        levels += 1
        if levels > MAX_LEVELS:
            return False
        level = [child for item in level for child in (item.values() if isinstance(item, dict) else item)]
    return True


def _children(item: Any, name: str) -> list[Any]:
    if isinstance(item, Mapping):
        for key in item:
            if not isinstance(key, str):
                raise InvalidArgumentError(f"{name} is not JSON: a key is of type {type(key).__name__}")
        return list(item.values())
    if isinstance(item, (list, tuple)):
        return list(item)
    raise InvalidArgumentError(f"{name} is not JSON: it contains a {type(item).__name__}")


def _check_number(number: float, name: str) -> None:
    if isinstance(number, float):
        if not math.isfinite(number):
            raise InvalidArgumentError(f"{name} is not JSON: it contains {number}")
    elif number.bit_length() > _MAX_INTEGER_BITS:
        raise InvalidArgumentError(f"{name} contains a number with too many digits")
