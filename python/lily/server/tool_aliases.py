"""Aliases for names of tools and parameters that cannot be written in a call.

A call is written with tags, ``<function=NAME>``, so a name must not contain what ends a tag, nor be longer than the
parser looks. The model sees such a tool under an alias; the client never does.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from lily.chat import Done, ToolCall, ToolCallDelta, ToolCallEvent
from lily.chat.call_tags import is_writable
from lily.chat.events import Event

__all__ = ["ToolAliases"]

_LONGEST = 120  # characters
_UNFIT = re.compile(r"[<>\s\"']+")


class ToolAliases:
    """The aliases of one request's tools. Most have none, and everything passes unchanged."""

    def __init__(self) -> None:
        self._tools = _Aliases("tool")
        self._names: dict[str, str] = {}  # aliases by the client's name
        self._parameters: dict[str, dict[str, str]] = {}  # by the client's name of the tool

    def function(self, function: Mapping[str, Any], taken: Collection[str]) -> dict[str, Any]:
        """A function's definition as the model gets it; `taken` are all names."""
        name = function["name"]
        if not _is_fit(name):
            self._names[name] = self._tools.free(name, taken)
        schema = function["parameters"]
        properties = schema.get("properties")
        if not isinstance(properties, Mapping) or all(map(_is_fit, properties)):
            return {**function, "name": self.of(name)}
        parameters = _Aliases("parameter")
        renamed = {one: parameters.free(one, properties) for one in properties if not _is_fit(one)}
        self._parameters[name] = renamed
        changed = {**schema, "properties": {renamed.get(one, one): inner for one, inner in properties.items()}}
        if isinstance(schema.get("required"), list):
            changed["required"] = [renamed.get(one, one) if isinstance(one, str) else one for one in schema["required"]]
        return {**function, "name": self.of(name), "parameters": changed}

    def of(self, name: str) -> str:
        """The alias of a tool, or its name."""
        return self._names.get(name, name)

    def messages(self, messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The conversation, with the aliases in its calls."""
        if not self._names and not self._parameters:
            return list(messages)
        return [
            {**one, "tool_calls": [self._for_model(call) for call in one["tool_calls"]]}
            if one.get("tool_calls")
            else one
            for one in messages
        ]

    def _for_model(self, call: dict[str, Any]) -> dict[str, Any]:
        function = call["function"]
        name, arguments = function["name"], function["arguments"]
        renamed = self._parameters.get(name)
        if renamed is not None and isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except (ValueError, RecursionError):
                arguments = function["arguments"]
        if renamed is not None and isinstance(arguments, Mapping):
            arguments = {renamed.get(one, one): value for one, value in arguments.items()}
        return {**call, "function": {**function, "name": self.of(name), "arguments": arguments}}

    def events(
        self, events: Iterable[tuple[int, Event]], forbidden: Collection[str], told: list[str]
    ) -> Iterator[tuple[int, Event]]:
        """Events of turns with the client's names, and without calls of forbidden tools.

        Parameters
        ----------
        events
            Each with the index of its answer.
        forbidden
            Names, as the client has them, of tools that must not be called.
        told
            Receives the names of those that were called.
        """
        names = {alias: name for name, alias in self._names.items()}
        calls: set[int] = set()  # answers with one
        pieces: set[str] = set()  # ids of calls that are streamed in pieces
        for at, event in events:
            if isinstance(event, ToolCallDelta):
                name = names.get(event.name, event.name)
                pieces.add(event.id)
                if name not in forbidden and name not in self._parameters:
                    yield at, dataclasses.replace(event, name=name)
            elif isinstance(event, ToolCallEvent):
                call = self._for_client(event.call, names.get(event.call.name, event.call.name))
                if call.name in forbidden:
                    told.append(call.name)
                    continue
                calls.add(at)
                if call.name in self._parameters and call.id in pieces:
                    yield at, ToolCallDelta(call.id, call.name, call.arguments_json)
                yield at, ToolCallEvent(call)
            elif isinstance(event, Done) and event.finish_reason == "tool_calls" and at not in calls:
                yield at, dataclasses.replace(event, finish_reason="stop")
            else:
                yield at, event

    def _for_client(self, call: ToolCall, name: str) -> ToolCall:
        original = {alias: one for one, alias in self._parameters.get(name, {}).items()}
        arguments = (
            {original.get(one, one): value for one, value in call.arguments.items()} if original else call.arguments
        )
        return dataclasses.replace(call, name=name, arguments=arguments)


def _is_fit(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:  # a lone surrogate, which no token contains
        return False
    return is_writable(name)


class _Aliases:
    """Finds names that can be written in calls and are not taken."""

    def __init__(self, nothing: str) -> None:
        self._nothing = nothing
        self._numbers: Counter[str] = Counter()

    def free(self, name: str, taken: Collection[str]) -> str:
        """A name like this one; `taken` are those that need no alias."""
        text = name.encode("utf-8", "replace").decode()
        text = _UNFIT.sub("_", text)[:_LONGEST].strip("_") or self._nothing
        while True:
            self._numbers[text] += 1
            number = self._numbers[text]
            alias = text if number == 1 else f"{text}.{number}"
            if alias not in taken:
                return alias
