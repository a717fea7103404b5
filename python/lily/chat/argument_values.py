"""Turns the text of a tool call's argument into a value of the type that the tool's JSON schema asks for."""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

__all__ = ["ToolSchemas", "convert", "is_text", "load_json", "resolve"]

_NUMBER = re.compile(r"[+-]?(?:0|[1-9]\d*)(?:\.\d*)?(?:[eE][+-]?\d+)?", re.ASCII)
_TYPES = frozenset(["string", "integer", "number", "boolean", "null", "array", "object"])
_MISFIT = object()
_LITERAL_LIMIT = 100_000  # characters of a Python literal that is tried where JSON fails
_REFERENCE_DEPTH = 16


class ToolSchemas:
    """The parameter schemas of the tools in a request, by the tools' names."""

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        self._parameters: dict[str, Mapping[str, Any]] = {}
        for tool in tools:
            function = tool.get("function")
            definition = function if isinstance(function, Mapping) else tool
            schema = definition.get("parameters", definition.get("input_schema"))
            self._parameters[str(definition.get("name"))] = schema if isinstance(schema, Mapping) else {}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tools, in the order given."""
        return tuple(self._parameters)

    def __contains__(self, name: str) -> bool:
        return name in self._parameters

    def parameters(self, name: str) -> Mapping[str, Any]:
        """The JSON schema of a tool's arguments; empty for an unknown tool."""
        return self._parameters.get(name, {})

    def properties(self, name: str) -> Mapping[str, Any]:
        """Schema by parameter of a tool."""
        properties = self.parameters(name).get("properties")
        return properties if isinstance(properties, Mapping) else {}

    def convert(self, name: str, parameter: str, text: str) -> Any:
        """`text` as the value of a tool's parameter; see `convert`."""
        return convert(text, self.properties(name).get(parameter), self.parameters(name))

    def is_text(self, name: str, parameter: str) -> bool:
        """Whether a tool's parameter takes every text as it is."""
        return is_text(self.properties(name).get(parameter), self.parameters(name))


def convert(text: str, schema: Any, root: Mapping[str, Any] | None = None) -> Any:
    """Return `text` as a value that fits `schema`, or unchanged if it fits none of its types.

    The alternatives of ``type`` lists, ``anyOf`` and ``oneOf`` are tried in their order, ``null`` first. No schema
    means a string. Nothing raises.

    Parameters
    ----------
    text
        As the model wrote it.
    schema
        JSON schema of the value; anything that is not a mapping is taken for no schema.
    root
        Where ``$ref`` points into.
    """
    alternatives = list(_alternatives(schema, root or {}, _REFERENCE_DEPTH))
    for choices in (alternative for kind, alternative in alternatives if kind == "enum"):
        value = _choose(text, choices)
        if value is not _MISFIT:
            return value
    kinds = [kind for kind, _ in alternatives if kind != "enum"]
    stripped = text.strip()
    if "null" in kinds and stripped == "null":
        return None
    for kind in kinds:
        if kind == "string":
            return text
        value = _CONVERTERS[kind](stripped)
        if value is not _MISFIT:
            return value
    # A null where another type is due means "not given"; as a string it would mean nothing.
    return None if kinds and stripped == "null" else text


def is_text(schema: Any, root: Mapping[str, Any] | None = None) -> bool:
    """Whether `convert` returns every text unchanged."""
    kinds = [kind for kind, _ in _alternatives(schema, root or {}, _REFERENCE_DEPTH)]
    return not kinds or (kinds[0] == "string" and "null" not in kinds and "enum" not in kinds)


def load_json(text: str) -> Any:
    """Parse strict JSON; ValueError also for NaN, for too deep nesting and for lone surrogates in strings."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _alternatives(schema: Any, root: Mapping[str, Any], depth: int) -> Iterator[tuple[str, Any]]:
    """Pairs of a type's name and nothing, or of "enum" and the values allowed."""
    if not isinstance(schema, Mapping) or depth == 0:
        return
    reference = schema.get("$ref")
    if isinstance(reference, str):
        yield from _alternatives(resolve(reference, root), root, depth - 1)
    if "const" in schema:
        yield "enum", [schema["const"]]
    choices = schema.get("enum")
    if isinstance(choices, (list, tuple)):
        yield "enum", choices
    kinds = schema.get("type")
    for kind in [kinds] if isinstance(kinds, str) else kinds if isinstance(kinds, (list, tuple)) else []:
        if kind in _TYPES:
            yield kind, None
    if schema.get("nullable") is True:
        yield "null", None
    for keyword in ("anyOf", "oneOf", "allOf"):
        branches = schema.get(keyword)
        for branch in branches if isinstance(branches, (list, tuple)) else []:
            yield from _alternatives(branch, root, depth - 1)
    if kinds is None and ("properties" in schema or "additionalProperties" in schema):
        yield "object", None
    if kinds is None and "items" in schema:
        yield "array", None


def resolve(reference: str, root: Mapping[str, Any]) -> Any:
    """What a ``$ref`` within `root` points at; None for nothing."""
    found: Any = root
    if not reference.startswith("#"):
        return None
    for part in reference[1:].split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _choose(text: str, choices: Sequence[Any]) -> Any:
    for choice in choices:
        if isinstance(choice, str) and choice == text:
            return choice
    stripped = text.strip()
    for choice in choices:
        if isinstance(choice, str) and choice == stripped:
            return choice
        if not isinstance(choice, str) and _equals(choice, stripped):
            return choice
    return _MISFIT


def _equals(choice: Any, text: str) -> bool:
    if isinstance(choice, bool):
        return _boolean(text) is choice
    if isinstance(choice, (int, float)):
        number = _number(text)
        return number is not _MISFIT and bool(number == choice)
    try:
        value = load_json(text)
    except ValueError:
        return False
    return bool(value == choice) and type(value) is type(choice)


def _number(text: str) -> Any:
    if not _NUMBER.fullmatch(text):
        return _MISFIT
    try:
        if text.lstrip("+-").isdigit():
            return int(text)
        value = float(text)
    except ValueError:  # more digits than Python converts
        return _MISFIT
    return value if math.isfinite(value) else _MISFIT


def _integer(text: str) -> Any:
    value = _number(text)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _boolean(text: str) -> Any:
    return {"true": True, "false": False}.get(text.lower(), _MISFIT)


def _null(text: str) -> Any:
    return None if text in ("null", "None") else _MISFIT


def _structure(text: str, kind: type) -> Any:
    try:
        value = load_json(text)
    except ValueError:
        value = _python_literal(text)
    return value if isinstance(value, kind) else _MISFIT


def _python_literal(text: str) -> Any:
    # Models now and then write {'a': True}; only what JSON can express is taken.
    if len(text) > _LITERAL_LIMIT or text[:1] not in ("{", "["):
        return _MISFIT
    try:
        value = ast.literal_eval(text)
        return value if load_json(json.dumps(value)) == value else _MISFIT
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return _MISFIT


def _array(text: str) -> Any:
    return _structure(text, list)


def _object(text: str) -> Any:
    return _structure(text, dict)


_CONVERTERS = {
    "integer": _integer,
    "number": _number,
    "boolean": _boolean,
    "null": _null,
    "array": _array,
    "object": _object,
}
