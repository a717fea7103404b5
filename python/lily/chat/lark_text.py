"""Bounds a grammar from a request: the JSON schemas inside it, and endless repetition."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from lily.chat.schema_limits import check_json
from lily.errors import InvalidArgumentError

__all__ = ["UNFORCED", "bounded_grammar"]

#: Ends a grammar's text. Without it the library looks ahead while only one character may follow, which never ends for a
#: rule such as `start: /a+/ start`.
UNFORCED = '\n%llguidance {"no_forcing": true}\n'

_SCHEMA = re.compile(r"%json\s*")
_DECODER = json.JSONDecoder()


def bounded_grammar(text: str, rewrite: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> str:
    """A grammar with `rewrite` applied to each JSON schema in it, followed by `UNFORCED`.

    Parameters
    ----------
    text
        Lark text, or JSON text of several grammars.
    rewrite
        Returns the replacement of a schema.

    Raises
    ------
    InvalidArgumentError
        A ``%json`` is not followed by a JSON object, or a text that begins like JSON is not JSON of several grammars.
    """
    if not text.lstrip().startswith("{"):
        return _rewritten(text, rewrite) + UNFORCED
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError("the grammar is not valid: it begins like JSON, but is not JSON") from error
    check_json(whole, "the grammar")
    grammars = whole.get("grammars")
    if not isinstance(grammars, list) or not all(isinstance(one, dict) for one in grammars):
        raise InvalidArgumentError("the grammar is not valid: in JSON form it must have a list of grammars")
    for one in grammars:
        if isinstance(one.get("json_schema"), dict):
            one["json_schema"] = rewrite(one["json_schema"])
        if isinstance(one.get("lark_grammar"), str):
            one["lark_grammar"] = _rewritten(one["lark_grammar"], rewrite) + UNFORCED
    return json.dumps(whole)


def _rewritten(text: str, rewrite: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> str:
    pieces: list[str] = []
    at = 0
    # Wherever the word occurs: the library may see strings and comments differently.
    while (found := _SCHEMA.search(text, at)) is not None:
        try:
            schema, end = _DECODER.raw_decode(text, found.end())
        except (ValueError, RecursionError):
            schema, end = None, 0
        if not isinstance(schema, (dict, bool)):
            raise InvalidArgumentError("the grammar is not valid: %json must be followed by a JSON schema")
        if isinstance(schema, dict):
            check_json(schema, "the grammar: a JSON schema")
            schema = rewrite(schema)
        pieces += [text[at : found.end()], json.dumps(schema)]
        at = end
    return "".join([*pieces, text[at:]])
