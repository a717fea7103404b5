"""Reads JSON that models write, strictly or tolerating their mistakes in arrays and objects."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection
from typing import Any

from lily.chat.schema_limits import is_within_levels
from lily.chat.sloppy_json import as_json

__all__ = ["MISFIT", "load_call", "load_json", "load_structure", "unquoted"]

MISFIT = object()  #: means that no value, not even None, was found
_LIMIT = 100_000  # characters of a text that is tried after JSON fails
_FENCED = re.compile(r"```[\w-]*[ \t]*\r?\n(.*)\n[ \t]*```", re.DOTALL)
_KINDS = {"array": list, "object": dict}


def load_json(text: str) -> Any:
    """Parse strict JSON.

    Raises
    ------
    ValueError
        It is not JSON; also for NaN, for more levels than `lily.chat.schema_limits.MAX_LEVELS`, and for lone surrogates
        in strings.
    """
    return _load(text, strict=True)


def load_call(text: str) -> Any:
    """Parse JSON with the mistakes that models make, see `lily.chat.sloppy_json`; ValueError for anything else.

    NaN and the infinities, which JSON does not have, become strings.
    """
    try:
        return _load(text, strict=False)
    except ValueError:
        if len(text) > _LIMIT:
            raise
        return _load(as_json(text, keep_no_numbers=True), strict=True)


def load_structure(text: str, kinds: Collection[str], *, only_json: bool = False) -> Any:
    """The array or object in a text without surrounding space; `MISFIT` if there is none.

    Also accepts line breaks inside strings, JSON inside a JSON string or a Markdown fence, what `lily.chat.sloppy_json`
    reads, and Python literals.

    Parameters
    ----------
    text
        As the model wrote it.
    kinds
        Which of "array" and "object" it may be.
    only_json
        Nothing but JSON, perhaps with line breaks inside strings.
    """
    types = tuple(_KINDS[kind] for kind in kinds if kind in _KINDS)
    if text.startswith("```") and not only_json:
        fenced = _FENCED.fullmatch(text)
        text = text if fenced is None else fenced[1].strip()
    if text[:1] not in ("{", "[", '"') or (only_json and text[:1] == '"'):
        return MISFIT
    try:
        value = _load(text, strict=False)
        if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
            value = _load(value.strip(), strict=False)
    except ValueError:
        value = MISFIT if only_json else _sloppy_value(text)
    return value if isinstance(value, types) else MISFIT


def unquoted(text: str) -> str:
    """The content of a JSON string; any other text unchanged."""
    if len(text) < 2 or text[0] != '"' or text[-1] != '"':
        return text
    try:
        value = load_json(text)
    except ValueError:
        return text
    return value if isinstance(value, str) else text


def _load(text: str, *, strict: bool) -> Any:
    try:
        value = json.loads(text, parse_constant=_refuse_constant, strict=strict)
        if not is_within_levels(value):
            raise ValueError("nested too deeply")
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _sloppy_value(text: str) -> Any:
    if len(text) > _LIMIT or text[:1] not in ("{", "["):
        return MISFIT
    try:
        return _load(as_json(text), strict=True)
    except ValueError:
        pass
    try:  # Python has more forms of strings and numbers; only what JSON can express is accepted
        value = ast.literal_eval(text)
        return value if load_json(json.dumps(value)) == value else MISFIT
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return MISFIT
