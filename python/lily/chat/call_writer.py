"""Writes the arguments of a tool call as JSON text while the model is still writing them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lily.chat.call_tags import TextBuffer
from lily.chat.events import ToolCallDelta, new_call_id

__all__ = ["CallInProgress", "CallWriter", "TextSoFar"]


@dataclass(frozen=True)
class TextSoFar:
    """The text of a string being written: a range of a buffer."""

    buffer: TextBuffer
    start: int
    end: int

    def after(self, length: int) -> str:
        """The text after its first characters; costs only as much as that text."""
        return self.buffer.text[self.start + length : self.end]


@dataclass(frozen=True)
class CallInProgress:
    """What is known about an incomplete call.

    `arguments` are complete; `parameter` and `text` belong to a string that is being written.
    """

    name: str
    arguments: Mapping[str, Any]
    parameter: str | None = None
    text: TextSoFar | None = None


class CallWriter:
    """Pieces of one call. Joined, their texts are the JSON of its arguments."""

    def __init__(self) -> None:
        self.id = new_call_id()
        self._begun = False
        self._written: dict[str, Any] = {}
        self._parameter: str | None = None  # whose string is open
        self._length = 0  # characters of it written so far
        self._text = ""

    def advance(self, call: CallInProgress) -> list[ToolCallDelta]:
        """The new piece, if there is one."""
        self._write_arguments(call.arguments)
        if call.text is not None and call.parameter is not None and call.parameter not in self._written:
            if self._parameter is None:
                self._text += f'{self._separator()}{_json(call.parameter)}: "'
                self._parameter, self._length = call.parameter, 0
            self._write_characters(call.text.after(self._length))
        return self._take(call.name)

    def finish(self, name: str, arguments: Mapping[str, Any]) -> list[ToolCallDelta]:
        """The rest of a complete call."""
        self._write_arguments(arguments)
        self._text += "}" if self._written else "{}"
        return self._take(name)

    def _write_arguments(self, arguments: Mapping[str, Any]) -> None:
        for parameter, value in arguments.items():
            if parameter == self._parameter:
                self._write_characters(value[self._length :])
                self._text += '"'
                self._parameter = None
            elif parameter not in self._written or self._written[parameter] is not value:
                self._text += f"{self._separator()}{_json(parameter)}: {_json(value)}"
            self._written[parameter] = value

    def _write_characters(self, text: str) -> None:
        self._text += _json(text)[1:-1]
        self._length += len(text)

    def _separator(self) -> str:
        return ", " if self._written else "{"

    def _take(self, name: str) -> list[ToolCallDelta]:
        if self._begun and not self._text:
            return []
        self._begun = True
        text, self._text = self._text, ""
        return [ToolCallDelta(self.id, name, text)]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
