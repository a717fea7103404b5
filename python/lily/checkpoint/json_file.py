"""Strict JSON from a checkpoint's files, with a clear error for everything that can be wrong."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NoReturn

from lily.checkpoint.foreign_content import foreign_content
from lily.checkpoint.read_file import ErrorType, decode_text, exists, read_file
from lily.checks.quoting import quoted_path, quoted_text

_DAMAGED = "the file is damaged: restore it from the checkpoint's source"
_MAX_DEPTH = 64  # of nested objects and lists
_MAX_VALUES = 4_000_000
_MAX_DIGITS = 4300  # digits of an integer: Python's own default limit


def read_json_object(path: Path, error_type: ErrorType, *, limit: int, only_finite: bool = True) -> dict[str, Any]:
    """The JSON object in a regular file of at most `limit` bytes; see `parse_json_object`.

    Raises
    ------
    LilyError
        Of type `error_type`: the file is missing, cannot be read, or does not hold a JSON object.
    """
    data = read_file(path, error_type, limit=limit)
    return parse_json_object(data, str(path), error_type, only_finite=only_finite)


def read_optional_json_object(
    path: Path, error_type: ErrorType, *, limit: int, only_finite: bool = True
) -> dict[str, Any] | None:
    """Like `read_json_object`, but None if there is no such file."""
    return read_json_object(path, error_type, limit=limit, only_finite=only_finite) if exists(path) else None


def parse_json_object(
    data: bytes,
    where: str,
    error_type: ErrorType,
    *,
    max_depth: int | None = _MAX_DEPTH,
    only_finite: bool = True,
) -> dict[str, Any]:
    """Parse UTF-8 JSON whose top level is an object; `where` names the file in errors.

    A `max_depth` of None leaves nesting to the parser, for callers that only look at values of known depth.
    `only_finite=False` is for files with many irrelevant fields, into which training scripts write NaN and Infinity;
    the fields that are used are checked later.

    Duplicate keys and non-finite numbers are errors, so that no two readers can see different values. So are integers
    of more than 4300 digits and more than 64 levels of nesting, so that later code that walks over the values cannot
    fail or be slow.
    """
    text = _checked_text(data, where, error_type)
    parsed = _parse(text, where, error_type, only_finite)
    if max_depth is not None and data.count(b"[") + data.count(b"{") > max_depth and _is_deeper(parsed, max_depth):
        _fail(f"nests its JSON too deeply (more than {max_depth} levels)", where, error_type)
    return parsed


def checked_json_text(data: bytes, where: str, error_type: ErrorType) -> str:
    """The text of a JSON object for another parser, which may be less strict: its keys are unique."""
    text = _checked_text(data, where, error_type)
    _parse(text, where, error_type, only_finite=True)
    return text


def _checked_text(data: bytes, where: str, error_type: ErrorType) -> str:
    foreign = foreign_content(data)
    if foreign is not None:
        raise error_type(f"{quoted_path(where)}: {foreign}")
    if not data.strip():
        _fail("is not JSON (the file is empty)", where, error_type)
    if sum(data.count(sign) for sign in (b",", b"[", b"{")) > _MAX_VALUES:
        _fail(f"has more than {_MAX_VALUES} values", where, error_type)
    return decode_text(data, where, error_type, _DAMAGED)


def _parse(text: str, where: str, error_type: ErrorType, only_finite: bool) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) != len(pairs):
            seen: set[str] = set()
            for key, _ in pairs:
                if key in seen:
                    _fail(f"the key {quoted_text(key)} appears twice in one JSON object", where, error_type)
                seen.add(key)
        return table

    def constant(name: str) -> float:
        if not only_finite:
            return float(name)
        _fail(f"{name} is not a finite number", where, error_type)

    def finite(digits: str) -> float:
        value = float(digits)
        if only_finite and value in (float("inf"), float("-inf")):
            _fail(f"{digits[:40]} is not a finite number", where, error_type)
        return value

    def integer(digits: str) -> int:
        if len(digits) > _MAX_DIGITS:
            _fail(f"is not JSON (an integer has {len(digits)} digits)", where, error_type)
        return int(digits)

    limit = getattr(sys, "get_int_max_str_digits", int)()  # 0: none, and long integers take long
    parse_int = None if 0 < limit <= _MAX_DIGITS else integer  # None is faster
    try:
        parsed = json.loads(
            text, object_pairs_hook=unique, parse_constant=constant, parse_float=finite, parse_int=parse_int
        )
    except error_type:
        raise
    except ValueError as error:
        _fail(f"is not JSON ({quoted_text(error)})", where, error_type, error)
    except RecursionError as error:
        _fail("nests its JSON too deeply", where, error_type, error)
    except MemoryError as error:
        _fail("is too large to parse", where, error_type, error)
    if not isinstance(parsed, dict):
        _fail(f"contains a JSON {type(parsed).__name__} where an object is expected", where, error_type)
    return parsed


def _fail(what: str, where: str, error_type: ErrorType, cause: BaseException | None = None) -> NoReturn:
    raise error_type(f"{quoted_path(where)}: {what}; {_DAMAGED}") from cause


def _is_deeper(value: Any, limit: int) -> bool:
    """Whether objects and lists are nested more than `limit` levels deep."""
    level = [value]
    for _ in range(limit):
        level = [
            item
            for container in level
            for item in (container.values() if isinstance(container, dict) else container)
            if isinstance(item, (dict, list))
        ]
        if not level:
            return False
    return True
