"""The form of an answer under every name that clients have for it, as a response format."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from lily.checks.extras import require_extra
from lily.errors import MissingExtraError
from lily.server.errors import ApiError
from lily.server.fields import Fields

__all__ = ["form_field", "form_of", "known_form"]

_MOST_CHOICES = 1024
_LONGEST_RULES = 10_000  # characters of a grammar to convert; the time grows with their square
_RULES = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)  # marks GBNF and EBNF; anything else is Lark already


def form_of(fields: Fields) -> dict[str, Any] | None:
    """The answer format that a request asks for: `response_format`, or other servers' names for it.

    The first one in the order of this list counts; the others get a warning.
    """
    inner = fields.inner("structured_outputs")
    given: dict[str, dict[str, Any] | None] = {
        "response_format": known_form(fields, form_field(fields, "response_format"))
    }
    for holder, name, reader in (
        (fields, "guided_json", _schema),
        (fields, "json_schema", _schema),
        (fields, "format", _schema),
        (inner, "json", _schema),
        (fields, "guided_json_object", _any_object),
        (inner, "json_object", _any_object),
        (fields, "guided_regex", _regex),
        (fields, "regex", _regex),
        (inner, "regex", _regex),
        (fields, "guided_choice", _choice),
        (inner, "choice", _choice),
        (fields, "guided_grammar", _grammar),
        (fields, "grammar", _grammar),
        (fields, "ebnf", _grammar),
        (inner, "grammar", _grammar),
    ):
        readers: Callable[[Fields, str], dict[str, Any] | None] = reader
        given[f"{'structured_outputs.' if holder is inner else ''}{name}"] = readers(holder, name)
    inner.refuse({"structural_tag": "it is not supported; give tools, or a response_format"})
    inner.ignore_warned(dict.fromkeys(inner.rest(), "this server does not know it"))
    names = [name for name, form in given.items() if form is not None]
    for name in names[1:]:
        fields.warnings.add(f"{name} is ignored: {names[0]} already sets the form of the answer")
    return given[names[0]] if names else None


def form_field(fields: Fields, name: str) -> dict[str, Any] | None:
    """A field that holds a form, or the name of its type alone."""
    value = fields.any(name)
    return {"type": value} if isinstance(value, str) and value else fields.mapping(name) or None


def known_form(fields: Fields, form: dict[str, Any] | None) -> dict[str, Any] | None:
    """A response format in the library's terms; other servers write some of them differently."""
    if form is None:
        return None
    kind = form.get("type")
    value = form.get("value")
    if kind == "json_object" and isinstance(form.get("schema"), dict):
        return {"type": "json_schema", "schema": form["schema"]}
    if kind in ("json", "json_object", "json_schema") and isinstance(value, dict):
        return {"type": "json_schema", "schema": value}
    if kind == "json":
        return {"type": "json_object"}
    if kind in ("regex", "regexp"):
        text = next((form[name] for name in ("regex", "pattern", "value") if form.get(name) is not None), None)
        return {"type": "regex", "regex": text}
    if kind in ("grammar", "ebnf", "gbnf", "lark"):
        text = next((form[name] for name in ("grammar", "value", kind) if form.get(name) is not None), None)
        return {"type": "grammar", "grammar": _as_lark(text, "response_format") if isinstance(text, str) else text}
    if kind == "json_schema" and isinstance(form.get("json_schema"), str):
        return {"type": "json_schema", "schema": _parsed(fields, "response_format", form["json_schema"])}
    return form


def _schema(fields: Fields, name: str) -> dict[str, Any] | None:
    schema = fields.any(name)
    if schema is None or schema == "":
        return None
    if schema == "json":
        return {"type": "json_object"}
    if isinstance(schema, str):
        schema = _parsed(fields, name, schema)
    if not isinstance(schema, Mapping):
        raise fields.wrong(name, "a JSON schema", schema)
    return {"type": "json_schema", "schema": schema}


def _parsed(fields: Fields, name: str, text: str) -> Any:
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError):
        raise fields.wrong(name, "a JSON schema", text) from None
    if not isinstance(schema, dict):
        raise fields.wrong(name, "a JSON schema", text)
    return schema


def _any_object(fields: Fields, name: str) -> dict[str, Any] | None:
    return {"type": "json_object"} if fields.flag(name, False) else None


def _regex(fields: Fields, name: str) -> dict[str, Any] | None:
    text = fields.text(name)
    return {"type": "regex", "regex": text} if text else None


def _choice(fields: Fields, name: str) -> dict[str, Any] | None:
    choices = fields.strings(name, _MOST_CHOICES)
    return {"type": "regex", "regex": "|".join(map(re.escape, choices))} if choices else None


def _grammar(fields: Fields, name: str) -> dict[str, Any] | None:
    text = fields.text(name)
    return {"type": "grammar", "grammar": _as_lark(text, name)} if text else None


def _as_lark(text: str, name: str) -> str:
    """A grammar in Lark's syntax, converted from that of llama.cpp and XGrammar if necessary."""
    if _RULES.search(text) is None:
        return text
    if len(text) > _LONGEST_RULES:
        what = f"{name} is too long: {len(text)} characters; a grammar in this syntax may have {_LONGEST_RULES}"
        raise ApiError(400, what, param=name, code="invalid_value")
    try:
        require_extra("structured", "llguidance")
    except MissingExtraError as error:
        raise ApiError(400, f"{name}: {error}", param=name, code="unsupported_parameter") from error
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        return str(gbnf_to_lark(text))
    except Exception as error:  # the library raises plain exceptions
        raise ApiError(400, f"{name} is not valid: {str(error)[:300]}", param=name, code="invalid_value") from error
