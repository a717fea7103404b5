"""The tools of a request as functions of the library; tools that run elsewhere are left out with a warning."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lily.chat import ToolCall
from lily.chat.events import Event
from lily.server.errors import ApiError, unsupported
from lily.server.request_warnings import Warnings
from lily.server.schema_warnings import warn_of_free_parameters
from lily.server.tool_aliases import ToolAliases

__all__ = ["CUSTOM_INPUT", "RequestTools", "ToolsOfModel"]

CUSTOM_INPUT = "input"  # the one parameter of a tool that takes free text
_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}
#: Tools of Anthropic's API that the client runs. Their parameters are not in requests, because its models know them.
_KNOWN_BY_HEART: Mapping[str, tuple[str, Mapping[str, str], tuple[str, ...]]] = {
    "bash_": ("Run a command in a bash session.", {"command": "string", "restart": "boolean"}, ()),
    "text_editor_": (
        "View and edit files: command is view, create, str_replace or insert.",
        {
            "command": "string",
            "path": "string",
            "file_text": "string",
            "old_str": "string",
            "new_str": "string",
            "insert_line": "integer",
            "insert_text": "string",
            "view_range": "array",
        },
        ("command", "path"),
    ),
}


@dataclass(frozen=True)
class _Origin:
    """What a function is to the client."""

    name: str
    custom: bool = False
    namespace: str | None = None


@dataclass(frozen=True)
class ToolsOfModel:
    """A conversation, functions and a tool choice with names that can be written in calls."""

    messages: list[dict[str, Any]]
    functions: list[dict[str, Any]]
    choice: str | dict[str, Any] | None


class RequestTools:
    """Reads the tools and the tool choice of a request, and remembers the client's form of each tool.

    Attributes
    ----------
    functions : list of dict
        Definitions in OpenAI's form.
    choice : str or mapping or None
        Which of them may be called, as `lily.chat.TurnOptions.tool_choice` takes it.
    """

    def __init__(self, warnings: Warnings, *, strict: bool) -> None:
        self.functions: list[dict[str, Any]] = []
        self.choice: str | dict[str, Any] | None = None
        self._warnings = warnings
        self._strict = strict
        self._origins: dict[str, _Origin] = {}
        self._left_out: list[Any] = []  # names
        self._forbidden: set[str] = set()
        self._strict_names: set[str] = set()
        self._aliases = ToolAliases()

    # -- reading -------------------------------------------------------------------------------------------------

    def add_all(self, place: str, tools: Sequence[Any]) -> None:
        """Take a list of tools; `place` has a gap for the index."""
        for at, tool in enumerate(tools):
            self.add(place.format(at), tool)

    def add_late(self, place: str, tool: Any) -> None:
        """Take a tool that an item of the conversation defines, unless it is already known."""
        name = tool.get("name") if isinstance(tool, Mapping) else None
        if not isinstance(name, str) or name not in self._origins:
            self.add(place, tool)

    def add(self, place: str, tool: Any, namespace: str | None = None) -> None:
        """Take one tool of any API."""
        if not isinstance(tool, Mapping):
            raise _invalid(place, "must be an object")
        kind = tool.get("type")
        inner = tool.get(kind) if kind in ("function", "custom") else None
        body: Mapping[str, Any] = inner if isinstance(inner, Mapping) else tool
        if kind == "namespace" and isinstance(tool.get("tools"), list):
            for at, one in enumerate(tool["tools"]):
                self.add(f"{place}.tools[{at}]", one, str(tool.get("name") or "") or None)
        elif kind == "function" or (kind in (None, "custom") and "input_schema" in body):
            self._add(
                place,
                body,
                body.get("parameters", body.get("input_schema")),
                _Origin(_name(place, body), namespace=namespace),
            )
        elif kind == "custom":
            self._add_custom(place, body, namespace)
        elif kind is None and body.get("name") is None and tool:
            self._add_nameless(place, tool)
        elif kind is None:
            self._add(place, body, body.get("parameters"), _Origin(_name(place, body), namespace=namespace))
        elif (known := _known_by_heart(kind)) is not None and isinstance(tool.get("name"), str):
            self._add(place, {"name": tool["name"], **known}, known["parameters"], _Origin(tool["name"]))
        else:
            self._leave_out(place, kind, tool.get("name"))

    def _add_nameless(self, place: str, tool: Mapping[str, Any]) -> None:
        """Take an object of Gemini's API, which contains functions or names a tool of the server."""
        for kind, inner in tool.items():
            if kind in ("function_declarations", "functionDeclarations") and isinstance(inner, list):
                self.add_all(f"{place}.{kind}[{{}}]", inner)
            else:
                self._leave_out(place, kind, kind)

    def _leave_out(self, place: str, kind: Any, name: Any) -> None:
        what = f"{place}: tools of type {str(kind)[:80]!r} do not run on this server"
        if self._strict:
            raise unsupported(place, what)
        self._left_out.append(name)
        self._warnings.add(f"{what}; the model does not see it")

    def _add_custom(self, place: str, tool: Mapping[str, Any], namespace: str | None) -> None:
        text = {"type": "string", "description": "The whole input, as free text."}
        schema = {"type": "object", "properties": {CUSTOM_INPUT: text}, "required": [CUSTOM_INPUT]}
        form = tool.get("format")
        grammar = form.get("grammar", form) if isinstance(form, Mapping) else {}
        definition = grammar.get("definition") if isinstance(grammar, Mapping) else None
        description = tool.get("description") if isinstance(tool.get("description"), str) else ""
        if isinstance(definition, str):
            description = f"{description}\n\nThe input has this form ({grammar.get('syntax')}):\n{definition}".strip()
        body = {**tool, "description": description}
        self._add(place, body, schema, _Origin(_name(place, tool), custom=True, namespace=namespace))

    def _add(self, place: str, tool: Mapping[str, Any], parameters: Any, origin: _Origin) -> None:
        name = self._free_name(origin)
        if name in self._origins:
            what = f"{place}: there is a tool with the name {name[:80]!r} already"
            if self._strict:
                raise _invalid(place, what.partition(": ")[2])
            self._warnings.add(f"{what}; this one is left out")
            return
        self._origins[name] = origin
        if tool.get("strict") is True:
            self._strict_names.add(name)
        function: dict[str, Any] = {"name": name}
        if isinstance(tool.get("description"), str) and tool["description"]:
            function["description"] = tool["description"]
        function["parameters"] = _schema(place, parameters)
        self.functions.append({"type": "function", "function": function})

    def _free_name(self, origin: _Origin) -> str:
        if origin.name not in self._origins or origin.namespace is None:
            return origin.name
        return f"{origin.namespace}.{origin.name}"

    def choose(self, choice: Any, place: str = "tool_choice") -> None:
        """Take the tool choice of any API."""
        if isinstance(choice, str) and choice in self._origins:
            self.choice = {"type": "function", "function": {"name": choice}}
        elif choice is None or isinstance(choice, str):
            self.choice = choice or None
        elif not isinstance(choice, Mapping):
            raise _invalid(place, "must be a string or an object")
        else:
            self._choose_by_object(place, choice)
        if self.choice in ("required", "any") and not self.functions and self._left_out:
            self._warnings.add(f"{place} is ignored: none of the tools runs here")
            self.choice = None

    def _choose_by_object(self, place: str, choice: Mapping[str, Any]) -> None:
        kind = choice.get("type")
        inner = choice.get(kind if isinstance(kind, str) else "function")
        body: Mapping[str, Any] = inner if isinstance(inner, Mapping) else choice
        if kind in ("auto", "none", "any", "required"):
            self.choice = str(kind)
        elif kind == "allowed_tools":
            self._allow(place, body)
        elif body.get("name") is not None and body["name"] in self._left_out and not self._strict:
            self._warnings.add(f"{place} is ignored: that tool does not run on this server")
        elif kind in ("function", "custom", "tool", None) and isinstance(body.get("name"), str):
            self.choice = {
                "type": "function",
                "function": {"name": self.given_name(body["name"], body.get("namespace"))},
            }
        elif kind in ("function", "custom", "tool", None) or self._strict:
            raise _invalid(place, "is auto, none, required, allowed_tools, or names a function")
        else:
            self._warnings.add(f"{place} is ignored: tools of type {str(kind)[:80]!r} do not run on this server")
            self.choice = None

    def _allow(self, place: str, allowed: Mapping[str, Any]) -> None:
        """Allow only some of the tools: the model does not see the others."""
        tools = allowed.get("tools")
        mode = allowed.get("mode", "auto")
        if not isinstance(tools, list) or mode not in ("auto", "required"):
            raise _invalid(place, "allowed_tools needs a list of tools, and the mode auto or required")
        names: set[str] = set()
        for tool in tools:
            body = tool if isinstance(tool, Mapping) else {}
            inner = body.get(str(body.get("type")))
            name = (inner if isinstance(inner, Mapping) else body).get("name")
            if isinstance(name, str):
                names.add(self.given_name(name, body.get("namespace")))
        unknown = names - set(self._origins) - {one for one in self._left_out if isinstance(one, str)}
        if unknown:
            raise _invalid(place, f"allows {min(unknown)[:80]!r}, which is not one of the tools")
        self.functions = [one for one in self.functions if one["function"]["name"] in names]
        self._forbidden = set(self._origins) - names
        self._left_out += self._forbidden
        self.choice = mode

    # -- the model's names ----------------------------------------------------------------------------------------

    def for_model(self, messages: Sequence[dict[str, Any]], *, with_form: bool) -> ToolsOfModel:
        """What the model gets, once all is read; `with_form`: the answer has a format, and so have calls.

        If calls have one, a warning lists what it does not enforce of the tools' schemas; otherwise the strict tools.
        """
        choice = self.choice
        named = choice["function"]["name"] if isinstance(choice, dict) else None
        if named is not None or choice in ("required", "any") or (with_form and choice != "none"):
            warn_of_free_parameters(self.functions, None if named is None else {named}, self._warnings)
        elif choice != "none" and (strict := self._strict_names - self._forbidden):
            self._warnings.add(
                f"tools: strict is not enforced ({', '.join(sorted(strict))}): schemas are enforced only if "
                "tool_choice forces a call or the answer has a format"
            )
        functions = [
            {"type": "function", "function": self._aliases.function(one["function"], self._origins)}
            for one in self.functions
        ]
        if named is not None:
            choice = {"type": "function", "function": {"name": self._aliases.of(named)}}
        return ToolsOfModel(self._aliases.messages(messages), functions, choice)

    def events_for_client(self, events: Iterable[tuple[int, Event]]) -> Iterator[tuple[int, Event]]:
        """Events of answers, each with the answer's index, in the client's names.

        Calls of tools that are not allowed are left out, with a warning: the model may know them from the conversation.
        """
        told: list[str] = []
        for item in self._aliases.events(events, self._forbidden, told):
            for name in told:
                self._warnings.add(f"a call of {name[:80]!r}, which tool_choice does not allow, was left out")
            told.clear()
            yield item

    # -- the client's names ---------------------------------------------------------------------------------------

    def given_name(self, name: str, namespace: Any = None) -> str:
        """The function that represents a tool of the client."""
        if isinstance(namespace, str) and f"{namespace}.{name}" in self._origins:
            return f"{namespace}.{name}"
        return name

    def is_custom(self, name: str) -> bool:
        """Whether the tool behind a function takes free text."""
        return name in self._origins and self._origins[name].custom

    def client_name(self, name: str) -> str:
        """How the client calls the tool behind a function."""
        return self._origins[name].name if name in self._origins else name

    def namespace(self, name: str) -> str | None:
        """The namespace of the tool behind a function."""
        return self._origins[name].namespace if name in self._origins else None

    @staticmethod
    def custom_input(call: ToolCall) -> str:
        """The free text of a call of a custom tool."""
        value = call.arguments.get(CUSTOM_INPUT)
        return value if isinstance(value, str) else call.arguments_json


def _known_by_heart(kind: Any) -> dict[str, Any] | None:
    for prefix, (description, types, required) in _KNOWN_BY_HEART.items():
        if isinstance(kind, str) and kind.startswith(prefix):
            properties = {name: {"type": one} for name, one in types.items()}
            schema = {"type": "object", "properties": properties, "required": list(required)}
            return {"description": description, "parameters": schema}
    return None


def _schema(place: str, parameters: Any) -> Mapping[str, Any]:
    """The schema of a tool's parameters. Some clients write it as text, some languages write an empty one as a list."""
    if isinstance(parameters, str) and parameters.strip():
        with contextlib.suppress(ValueError, RecursionError):
            parameters = json.loads(parameters)
    if not isinstance(parameters, Mapping):
        if not parameters:
            return _NO_PARAMETERS
        raise _invalid(place, "the parameters of a tool must be a JSON schema")
    if parameters.get("properties") == []:
        return {**parameters, "properties": {}}
    return parameters


def _name(place: str, tool: Mapping[str, Any]) -> str:
    name = tool.get("name")
    if not isinstance(name, str) or not name:
        raise _invalid(place, "a tool needs a name")
    return name


def _invalid(place: str, what: str) -> ApiError:
    return ApiError(400, f"{place}: {what}", param=place, code="invalid_value")
