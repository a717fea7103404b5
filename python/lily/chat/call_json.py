"""Tool calls that are written as JSON: where a value ends while it is still growing, and the calls in it."""

from __future__ import annotations

import re
from typing import Any, Literal

from lily.chat.json_values import load_call

__all__ = ["JsonScanner", "calls_of", "json_object"]

_OUTSIDE = re.compile(r"[\s\w:,.+$-]*")
_INSIDE = {quote: re.compile(rf"[^{quote}\\]*") for quote in "\"'"}
_ENDS_OF_COMMENTS = {"//": "\n", "/*": "*/", "#": "\n"}
_LONGEST_COMMENT = 2000  # characters


class JsonScanner:
    """Finds the end of the object or array that begins at a place; every character is looked at once."""

    def __init__(self, start: int) -> None:
        self.at = start  #: how far it has come; behind the value once it has ended
        self._depth = 0
        self._quote = ""  # that has opened a string
        self._last = ""  # character outside of strings and comments, but for white space

    def scan(self, text: str, end: int) -> Literal["open", "ended", "wrong"]:
        """Go on to `end`: the value goes on there, has ended, or is no JSON, not even with the mistakes of models."""
        while self.at < end:
            self._pass_plain(text, end)
            if self.at == end:
                break
            character = text[self.at]
            if self._quote and character == "\\":
                if self.at + 1 == end:
                    break
                self.at += 2
                continue
            if character in "/#":
                behind = self._behind_comment(text, end)
                if behind == self.at:
                    break
                if behind < 0:
                    return "wrong"
                self.at = behind
                continue
            self.at += 1
            if self._quote:
                self._quote = ""
            elif character == '"' or (character == "'" and self._last in ("{", "[", ",", ":")):
                self._quote = character
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth <= 0:
                    return "ended"
            else:
                return "wrong"
            self._last = character
        return "open"

    def _pass_plain(self, text: str, end: int) -> None:
        """Go on to the next character that means something."""
        if self._quote:
            match = _INSIDE[self._quote].match(text, self.at, end)
        else:
            match = _OUTSIDE.match(text, self.at, end)
            self._last = (match[0].rstrip()[-1:] if match else "") or self._last
        self.at = match.end() if match else self.at

    def _behind_comment(self, text: str, end: int) -> int:
        """The place behind a comment; the same place if its end has not come, and a negative number for no comment."""
        opening = text[self.at : min(self.at + 2, end)]
        opening = "#" if opening[0] == "#" else opening
        if opening == "/":
            return self.at
        if opening not in _ENDS_OF_COMMENTS:
            return -1
        closing = _ENDS_OF_COMMENTS[opening]
        found = text.find(closing, self.at + len(opening), min(end, self.at + _LONGEST_COMMENT))
        if found >= 0:
            return found + len(closing)
        return self.at if end < self.at + _LONGEST_COMMENT else -1


def json_object(text: str) -> dict[str, Any] | None:
    """The object that the text is, written perhaps with the mistakes that `load_call` takes."""
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
        return load_call(text)
    except ValueError:
        return None
