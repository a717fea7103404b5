"""Tool calls that are written as JSON: where a value ends while it is still growing, and the calls in it."""

from __future__ import annotations

import json
import re
from typing import Any, Literal

from lily.chat.argument_values import load_json

__all__ = ["JsonScanner", "calls_of", "json_object"]

_OUTSIDE = re.compile(r"[\s\w:,.+-]*")
_INSIDE = re.compile(r'[^"\\]*')
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f]")


class JsonScanner:
    """Finds the end of the object or array that begins at a place; every character is looked at once."""

    def __init__(self, start: int) -> None:
        self.at = start  #: how far it has come; behind the value once it has ended
        self._depth = 0
        self._in_string = False

    def scan(self, text: str, end: int) -> Literal["open", "ended", "wrong"]:
        """Go on to `end`: the value goes on there, has ended, or is no JSON."""
        while self.at < end:
            match = (_INSIDE if self._in_string else _OUTSIDE).match(text, self.at, end)
            self.at = self.at if match is None else match.end()
            if self.at == end:
                break
            character = text[self.at]
            if self._in_string and character == "\\":
                if self.at + 1 == end:
                    break
                self.at += 2
                continue
            self.at += 1
            if character == '"':
                self._in_string = not self._in_string
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth <= 0:
                    return "ended"
            else:
                return "wrong"
        return "open"


def json_object(text: str) -> dict[str, Any] | None:
    """The object that the text is; raw control characters in its strings, which JSON forbids, are taken as they are."""
    value = _loaded(text)
    return value if isinstance(value, dict) else None


def calls_of(text: str) -> list[tuple[str, dict[str, Any]]]:
    """The calls of {"name": ..., "arguments": {...}}, or of a list of such objects; empty if one is no call."""
    value = _loaded(text)
    calls = []
    for entry in value if isinstance(value, list) else [value]:
        inner = entry.get("function") if isinstance(entry, dict) else None
        fields = inner if isinstance(inner, dict) else entry
        if not isinstance(fields, dict) or not isinstance(fields.get("name"), str) or not fields["name"]:
            return []
        arguments = fields.get("arguments", fields.get("parameters", {}))
        if isinstance(arguments, str):
            arguments = json_object(arguments)
        if not isinstance(arguments, dict):
            return []
        calls.append((fields["name"], arguments))
    return calls


def _loaded(text: str) -> Any:
    try:
        return load_json(text)
    except ValueError:
        pass
    try:
        return load_json(_STRING.sub(_with_escapes, text))
    except ValueError:
        return None


def _with_escapes(string: re.Match[str]) -> str:
    return _CONTROL.sub(lambda character: json.dumps(character[0])[1:-1], string[0])
