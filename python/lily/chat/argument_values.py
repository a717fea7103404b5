"""Converts the text of a tool call's argument to the type in the tool's JSON schema."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from lily.chat.json_values import MISFIT, load_json, load_structure, unquoted
from lily.chat.schema_references import References
from lily.chat.schema_types import ANY, types_of
from lily.chat.sloppy_json import json_number
from lily.checks.arguments import as_items, check_text
from lily.checks.quoting import quoted
from lily.errors import InvalidArgumentError

__all__ = ["ToolSchemas", "convert", "is_text", "load_json"]

_NULLS = ("null", "None")  # the second is from templates that write Python values
_STRUCTURES = frozenset(["array", "object", ANY])


class ToolSchemas:
    """The parameter schemas of the tools in a request, by the tools' names."""

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        self._parameters: dict[str, Mapping[str, Any]] = {}
        for at, tool in enumerate(as_items("tools", tools, "a list of definitions")):
            if not isinstance(tool, Mapping):
                raise InvalidArgumentError(f"tools[{at}] must be a mapping, not {quoted(tool)}")
            function = tool.get("function")
            definition = function if isinstance(function, Mapping) else tool
            schema = definition.get("parameters", definition.get("input_schema"))
            self._parameters[str(definition.get("name"))] = schema if isinstance(schema, Mapping) else {}
        self._references: dict[str, References] = {}
        self._allowed: dict[tuple[str, str], AllowedValues] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tools, in the order given."""
        return tuple(self._parameters)

    def __contains__(self, name: str) -> bool:
        return name in self._parameters

    def parameters(self, name: str) -> Mapping[str, Any]:
        """The JSON schema of a tool's arguments; empty for an unknown tool."""
        check_text("name", name)
        return self._parameters.get(name, {})

    def properties(self, name: str) -> Mapping[str, Any]:
        """Schema by parameter of a tool."""
        properties = self.parameters(name).get("properties")
        return properties if isinstance(properties, Mapping) else {}

    def references(self, name: str) -> References:
        """The references inside the schema of a tool's arguments."""
        check_text("name", name)
        if name not in self._references:
            self._references[name] = References(self.parameters(name))
        return self._references[name]

    def convert(self, name: str, parameter: str, text: str) -> Any:
        """`text` as the value of a tool's parameter; see `convert`."""
        check_text("text", text)
        return self._allowed_values(name, parameter).value_of(text)

    def fitted(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """A tool's arguments from JSON; strings that its schema does not allow are converted as in `convert`."""
        if not isinstance(arguments, Mapping):
            raise InvalidArgumentError(f"arguments must be a mapping, not {quoted(arguments)}")
        return {
            parameter: self._allowed_values(name, parameter).fitted(value) for parameter, value in arguments.items()
        }

    def is_text(self, name: str, parameter: str) -> bool:
        """Whether a tool's parameter takes every text unchanged."""
        return self._allowed_values(name, parameter).is_text

    def _allowed_values(self, name: str, parameter: str) -> AllowedValues:
        check_text("parameter", parameter)
        schema = self.properties(name).get(parameter)
        if schema is None:
            return _ANY_TEXT
        if (name, parameter) not in self._allowed:
            self._allowed[name, parameter] = AllowedValues(schema, self.references(name))
        return self._allowed[name, parameter]


class AllowedValues:
    """What a JSON schema says about a value's type; read once, in time proportional to its size."""

    def __init__(self, schema: Any, references: References) -> None:
        kinds: dict[str, None] = {}
        self._strings: dict[str, None] = {}
        self._numbers: dict[int | float, Any] = {}
        self._others: list[Any] = []
        self._has_choices = False
        for kind, choices in _alternatives(schema, references):
            if kind != "enum":
                kinds[kind] = None
                continue
            self._has_choices = True
            for choice in choices:
                self._add(choice)
        self._kinds = tuple(kinds)

    @property
    def is_text(self) -> bool:
        """Whether `value_of` returns every text unchanged."""
        return not self._has_choices and self._kinds in ((), ("string",))

    def fitted(self, value: Any) -> Any:
        """A JSON value; a string that is not allowed is converted."""
        unbound = not self._kinds and not self._has_choices
        if not isinstance(value, str) or unbound or self._takes_text:
            return value
        return value if value in self._strings else self.value_of(value)

    def value_of(self, text: str) -> Any:
        """See `convert`."""
        stripped = text.strip()
        if self._has_choices:
            value = self._choose(text, stripped)
            if value is not MISFIT:
                return value
        is_null = self._is_null(stripped)
        if is_null and "null" in self._kinds:
            return None
        for kind in self._kinds:
            value = self._as_string(text, stripped) if kind in ("string", ANY) else _CONVERTERS[kind](stripped)
            if value is not MISFIT:
                return value
        # A null where another type is expected means "not given"; as a string it would be meaningless.
        return None if self._kinds and is_null else text

    def _is_null(self, text: str) -> bool:
        if text in _NULLS:
            return True
        return len(text) == len(_NULLS[0]) and text.lower() in ("null", "none") and not self._takes_text

    @property
    def _takes_text(self) -> bool:
        return "string" in self._kinds or ANY in self._kinds

    def _as_string(self, text: str, stripped: str) -> Any:
        """The text, unless it is JSON for an array or object that is also allowed."""
        kinds = ("array", "object") if ANY in self._kinds else _STRUCTURES.intersection(self._kinds)
        value = load_structure(stripped, kinds, only_json=True) if kinds else MISFIT
        return text if value is MISFIT else value

    def _add(self, choice: Any) -> None:
        if isinstance(choice, str):
            self._strings[choice] = None
        elif isinstance(choice, (int, float)) and not isinstance(choice, bool):
            self._numbers.setdefault(choice, choice)
        else:
            self._others.append(choice)

    def _choose(self, text: str, stripped: str) -> Any:
        for string in (text, stripped):
            if string in self._strings:
                return string
        if self._numbers:
            number = _number(stripped)
            if number is not MISFIT and number in self._numbers:
                return self._numbers[number]
        if self._others:
            found = self._choose_other(stripped)
            if found is not MISFIT:
                return found
        string = unquoted(stripped) if self._strings else stripped
        return string if string in self._strings else MISFIT

    def _choose_other(self, text: str) -> Any:
        value = None if text in _NULLS else _boolean(text)
        if value is MISFIT:
            value = load_structure(text, ("array", "object"))
        for choice in self._others:
            if type(choice) is type(value) and choice == value:
                return choice
        return MISFIT


def convert(text: str, schema: Any, root: Mapping[str, Any] | None = None) -> Any:
    """Return `text` as a value that fits `schema`, or unchanged if it fits none of its types.

    The alternatives of ``type`` lists, ``anyOf`` and ``oneOf`` are tried in order, ``null`` first; JSON text of an
    array or object becomes one wherever the schema allows it. Numbers may have a plus sign, and a point without digits
    on one of its sides; truth values and, where no string is allowed, null may be written in any case. Anything else
    that is not a JSON number (``1_000``, ``007``, ``NaN``, digits of other scripts) stays a string. No schema means a
    string. Never raises.

    Parameters
    ----------
    text
        As the model wrote it.
    schema
        JSON schema of the value; anything but a mapping counts as no schema.
    root
        Where ``$ref`` points into.
    """
    return AllowedValues(schema, References(root or {})).value_of(text)


def is_text(schema: Any, root: Mapping[str, Any] | None = None) -> bool:
    """Whether `convert` returns every text unchanged."""
    return AllowedValues(schema, References(root or {})).is_text


def _alternatives(schema: Any, references: References) -> Iterator[tuple[str, Sequence[Any]]]:
    """Pairs of a type's name and None, or of "enum" and the allowed values; each part of the schema once."""
    seen: set[int] = set()
    waiting: list[tuple[str, Any]] = [("", schema)]
    while waiting:
        kind, item = waiting.pop()
        if kind:
            yield kind, item
            continue
        if not isinstance(item, Mapping) or id(item) in seen:
            continue
        seen.add(id(item))
        parts: list[tuple[str, Any]] = []
        if isinstance(item.get("$ref"), str):
            parts.append(("", references.find(item["$ref"])))
        if "const" in item:
            parts.append(("enum", [item["const"]]))
        if isinstance(item.get("enum"), (list, tuple)):
            parts.append(("enum", item["enum"]))
        parts += [(name, ()) for name in types_of(item)]
        if item.get("nullable") is True:
            parts.append(("null", ()))
        for keyword in ("anyOf", "oneOf", "allOf"):
            branches = item.get(keyword)
            parts += [("", branch) for branch in branches] if isinstance(branches, (list, tuple)) else []
        if "type" not in item and ("properties" in item or "additionalProperties" in item):
            parts.append(("object", ()))
        if "type" not in item and "items" in item:
            parts.append(("array", ()))
        waiting.extend(reversed(parts))


def _number(text: str) -> Any:
    written = json_number(text)
    if written is None:
        return MISFIT
    try:
        value = json.loads(written)
    except ValueError:  # more digits than Python converts
        return MISFIT
    return value if math.isfinite(value) else MISFIT


def _quoted_number(text: str) -> Any:
    return _number(unquoted(text).strip())


def _integer(text: str) -> Any:
    value = _quoted_number(text)
    if isinstance(value, float) and value.is_integer():
        exact = Decimal(unquoted(text).strip())  # 1e23 is not a power of two, and 9007199254740993.5 is not an integer
        return int(exact) if int(exact) == exact else value
    return value


def _boolean(text: str) -> Any:
    return {"true": True, "false": False}.get(unquoted(text).strip().lower(), MISFIT)


def _null(text: str) -> Any:
    return None if text in _NULLS else MISFIT


def _array(text: str) -> Any:
    return load_structure(text, ("array",))


def _object(text: str) -> Any:
    return load_structure(text, ("object",))


_CONVERTERS = {
    "integer": _integer,
    "number": _quoted_number,
    "boolean": _boolean,
    "null": _null,
    "array": _array,
    "object": _object,
}
_ANY_TEXT = AllowedValues(None, References({}))
