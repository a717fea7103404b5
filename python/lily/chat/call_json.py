"""Tool calls written as JSON: finds the end of a growing value, and the calls in it."""

from __future__ import annotations

import re
from typing import Any, Literal

from lily.chat.json_values import load_call

__all__ = ["JsonScanner", "calls_of", "json_object"]

_OUTSIDE = re.compile(r"[\s\w:,.+$-]*")
_INSIDE = {quote: re.compile(rf"[^{quote}\\]*") for quote in "\"'"}
_ENDS_OF_COMMENTS = {"//": "\n", "/*": "*/", "#": "\n"}
_LONGEST_SPACE = 200  # characters
_LONGEST_COMMENT = 2000  # characters


class JsonScanner:
    """Finds the end of the object or array that begins at a place; looks at each character once."""

    def __init__(self, start: int) -> None:
        self.at = start  #: how far it has read; after the value, once that has ended
        self._depth = 0
        self._quote = ""  # that has opened a string
        self._plain = _OUTSIDE  # what needs no look
        self._comment_end = 0  # of the last one

    def scan(self, text: str, end: int) -> Literal["open", "ended", "wrong"]:
        """Read up to `end`: the value continues, has ended, or is not JSON, even allowing for models' mistakes."""
        while self.at < end:
            match = self._plain.match(text, self.at, end)
            self.at = self.at if match is None else match.end()
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
                self.at = self._comment_end = behind
                continue
            self.at += 1
            if self._quote:
                self._quote, self._plain = "", _OUTSIDE
            elif character == '"' or (character == "'" and self._may_begin_string(text, self.at - 1)):
                self._quote, self._plain = character, _INSIDE[character]
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth <= 0:
                    return "ended"
            else:
                return "wrong"
        return "open"

    def _may_begin_string(self, text: str, at: int) -> bool:
        """Whether an apostrophe stands where a key or a value may."""
        before = text[max(self._comment_end, at - _LONGEST_SPACE) : at].rstrip()
        return before[-1:] in ("{", "[", ",", ":") if before else self._comment_end > 0

    def _behind_comment(self, text: str, end: int) -> int:
        """The place after a comment; the same place if its end has not arrived, negative if there is no comment."""
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
    """The object in a text, which may have the mistakes that `load_call` accepts."""
    value = _loaded(text)
    return value if isinstance(value, dict) else None


def calls_of(text: str) -> list[tuple[str, dict[str, Any]]]:
    """The calls in {"name": ..., "arguments": {...}}, or in a list of such objects; empty if one is not a call."""
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
