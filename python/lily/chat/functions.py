"""Python functions as tools: a JSON schema from the signature and the docstring, and calls with typed arguments."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import json
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from lily.chat.call_tags import is_writable
from lily.chat.docstrings import parse_docstring
from lily.chat.schema_limits import check_json
from lily.checks.arguments import as_items
from lily.checks.quoting import quoted
from lily.errors import InvalidArgumentError

__all__ = ["PythonTool", "as_definitions"]

_SIMPLE = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
_DEPTH = 8


class PythonTool:
    """A function that the model may call.

    The schema comes from the annotations: str, int, float, bool, None, Any, Optional and unions, Literal, list,
    dict, Enum, dataclasses and TypedDict. Descriptions come from the docstring (NumPy, Google, Sphinx or plain) and
    from the texts in ``Annotated[...]``.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        """
        Raises
        ------
        InvalidArgumentError
            A parameter has no annotation or one that has no JSON schema; the message names it.
        """
        if not callable(function):
            raise InvalidArgumentError(f"a tool must be a function or a definition, not {quoted(function)}")
        self.function = function
        self.name: str = getattr(function, "__name__", type(function).__name__)
        self._hints = _hints(function, self.name)
        self.definition = self._definition()

    def call(self, arguments: Mapping[str, Any]) -> Any:
        """Call the function; enum members and dataclasses are built from their JSON form.

        Raises
        ------
        TypeError
            The arguments do not fit the function's parameters.
        """
        if not isinstance(arguments, Mapping):
            raise InvalidArgumentError(f"arguments must be a mapping, not {quoted(arguments)}")
        signature = inspect.signature(self.function)
        values = {name: _typed(value, self._hints.get(name, Any)) for name, value in arguments.items()}
        bound = signature.bind(**values)
        return self.function(*bound.args, **bound.kwargs)

    def _definition(self) -> dict[str, Any]:
        text = parse_docstring(inspect.getdoc(self.function) or "")
        properties: dict[str, Any] = {}
        required: list[str] = []
        for parameter in _parameters(self.function, self.name):
            where = f"{self.name}(): parameter {parameter.name!r}"
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                raise InvalidArgumentError(f"{where}: a tool's parameters must have names that a call can use")
            if parameter.name not in self._hints:
                raise InvalidArgumentError(f"{where} needs a type annotation to become part of a tool")
            schema = _schema(self._hints[parameter.name], where)
            if parameter.name in text.parameters and "description" not in schema:
                schema["description"] = text.parameters[parameter.name]
            if parameter.default is parameter.empty:
                required.append(parameter.name)
            elif _is_json(parameter.default):
                schema["default"] = parameter.default
            properties[parameter.name] = schema
        parameters: dict[str, Any] = {"type": "object", "properties": properties}
        if required:
            parameters["required"] = required
        function = {"name": self.name, "description": text.description, "parameters": parameters}
        return {"type": "function", "function": function}


def as_definitions(
    tools: Sequence[Mapping[str, Any] | Callable[..., Any]] | None,
) -> tuple[list[dict[str, Any]], dict[str, PythonTool]]:
    """Definitions of all tools for the template, and the Python functions by name.

    Raises
    ------
    InvalidArgumentError
        A tool is neither a function nor a definition with a name, or two have the same name.
    """
    given = [] if tools is None else as_items("tools", tools, "a list", hint=f"a {type(tools).__name__}")
    definitions: list[dict[str, Any]] = []
    functions: dict[str, PythonTool] = {}
    names: set[str] = set()
    for index, tool in enumerate(given):
        if isinstance(tool, Mapping):
            definition = dict(tool)
            function = tool.get("function", tool)
            name = function.get("name") if isinstance(function, Mapping) else None
            if not isinstance(name, str) or not name:
                raise InvalidArgumentError(f"tools[{index}] has no name")
            check_json(tool, f"tools[{index}]")
            _check_definition(f"tools[{index}]", name, function)
        else:
            python_tool = PythonTool(tool)
            name, definition = python_tool.name, python_tool.definition
            functions[name] = python_tool
        if name in names:
            raise InvalidArgumentError(f"tools[{index}]: there are two tools with the name {quoted(name)}")
        names.add(name)
        definitions.append(definition)
    return definitions, functions


def _check_definition(where: str, name: str, function: Mapping[str, Any]) -> None:
    if not is_writable(name):
        raise InvalidArgumentError(f"{where}: {name[:80]!r} cannot be written in a call")
    for field in ("parameters", "input_schema"):
        if not isinstance(function.get(field), (Mapping, type(None))):
            kind = type(function[field]).__name__
            raise InvalidArgumentError(f"{where}: {field} must be a JSON schema, an object, not a {kind}")


def _parameters(function: Callable[..., Any], name: str) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # of a builtin
        raise InvalidArgumentError(
            f"{name}(): its parameters cannot be read; give the tool's definition as a mapping"
        ) from None


def _hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    target = function if inspect.isroutine(function) else type(function).__call__
    try:
        return typing.get_type_hints(target, include_extras=True)
    except Exception as error:  # annotations are any code
        raise InvalidArgumentError(f"{name}(): its annotations cannot be read ({error})") from error


def _schema(hint: Any, where: str, depth: int = _DEPTH) -> dict[str, Any]:
    if depth == 0:
        raise InvalidArgumentError(f"{where}: its type is nested too deeply or refers to itself")
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        schema = _schema(arguments[0], where, depth)
        texts = [extra for extra in arguments[1:] if isinstance(extra, str)]
        return {**schema, "description": texts[0]} if texts else schema
    if hint is Any:
        return {}
    if hint is None or hint in _SIMPLE:
        return {"type": _SIMPLE[type(None) if hint is None else hint]}
    if origin is Literal:
        return _choices(arguments, where)
    if origin is Union or origin is types.UnionType:
        return _union([_schema(argument, where, depth - 1) for argument in arguments])
    if hint in (list, tuple, set) or origin in (list, set, Sequence):
        items = {"items": _schema(arguments[0], where, depth - 1)} if arguments else {}
        return {"type": "array", **items}
    if hint is dict or origin in (dict, Mapping):
        if arguments and arguments[0] is not str:
            raise InvalidArgumentError(f"{where}: the keys of a dict must be str, not {arguments[0]!r}")
        values = {"additionalProperties": _schema(arguments[1], where, depth - 1)} if arguments else {}
        return {"type": "object", **values}
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _choices([member.value for member in hint], where)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _object(hint, {field.name for field in dataclasses.fields(hint) if _is_required(field)}, where, depth)
    if typing.is_typeddict(hint):
        return _object(hint, set(hint.__required_keys__), where, depth)
    raise InvalidArgumentError(
        f"{where}: {hint!r} has no JSON schema; use str, int, float, bool, None, Optional, Literal, list, dict, Enum, "
        "a dataclass or a TypedDict, or give the tool's definition as a mapping"
    )


def _choices(values: Sequence[Any], where: str) -> dict[str, Any]:
    kinds = {_SIMPLE.get(type(value)) for value in values}
    if None in kinds:
        raise InvalidArgumentError(f"{where}: the values to choose from must be str, int, float, bool or None")
    schema: dict[str, Any] = {"enum": list(values)}
    return {"type": kinds.pop(), **schema} if len(kinds) == 1 else schema


def _union(alternatives: list[dict[str, Any]]) -> dict[str, Any]:
    if all(set(schema) == {"type"} and isinstance(schema["type"], str) for schema in alternatives):
        return {"type": [schema["type"] for schema in alternatives]}
    return {"anyOf": alternatives}


def _object(hint: Any, required: set[str], where: str, depth: int) -> dict[str, Any]:
    hints = typing.get_type_hints(hint, include_extras=True)
    if dataclasses.is_dataclass(hint):
        hints = {field.name: hints[field.name] for field in dataclasses.fields(hint) if field.init}
    properties = {
        name: _schema(_without_required(field_hint), f"{where}, field {name!r}", depth - 1)
        for name, field_hint in hints.items()
    }
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if needed := [name for name in properties if name in required]:
        schema["required"] = needed
    return schema


def _without_required(hint: Any) -> Any:
    # Required[X] and NotRequired[X] of a TypedDict.
    return get_args(hint)[0] if getattr(get_origin(hint), "_name", "") in ("Required", "NotRequired") else hint


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.init and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _typed(value: Any, hint: Any) -> Any:
    """A JSON value as the annotation's enum member, dataclass or collection; otherwise unchanged."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _typed(value, arguments[0])
    if origin is Union or origin is types.UnionType:
        typed = (_typed(value, argument) for argument in arguments)
        return next((candidate for candidate in typed if candidate is not value), value)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return next((member for member in hint if member.value == value), value)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type) and isinstance(value, Mapping):
        hints = typing.get_type_hints(hint, include_extras=True)
        return hint(**{name: _typed(item, hints.get(name, Any)) for name, item in value.items()})
    if hint is float and type(value) is int:
        return float(value)
    if isinstance(value, list):
        if arguments and origin in (list, set, Sequence):
            value = [_typed(item, arguments[0]) for item in value]
        return set(value) if origin is set or hint is set else tuple(value) if hint is tuple else value
    if isinstance(value, dict) and len(arguments) == 2 and origin in (dict, Mapping):
        return {key: _typed(item, arguments[1]) for key, item in value.items()}
    return value


def _is_json(value: Any) -> bool:
    try:
        return bool(json.loads(json.dumps(value, allow_nan=False)) == value)
    except (TypeError, ValueError, RecursionError):
        return False
