"""The tags of tool calls, as the chat template writes them, and how to find them in growing text."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = [
    "CLOSE_CALL",
    "CLOSE_FUNCTION",
    "CLOSE_PARAMETER",
    "FUNCTION",
    "OPEN_CALL",
    "PARAMETER",
    "Tag",
    "TextBuffer",
    "begins_line",
    "is_partial_tag",
    "is_writable",
    "plain_name",
    "tag_at",
]

OPEN_CALL, CLOSE_CALL = "<tool_call>", "</tool_call>"
CLOSE_FUNCTION, CLOSE_PARAMETER = "</function>", "</parameter>"
FUNCTION, PARAMETER = "<function=", "<parameter="
_NAME = r"[^<>\n]{1,200}"
_TAG = re.compile(rf"</?tool_call>|</function>|</parameter>|<function=({_NAME})>|<parameter=({_NAME})>")
_PARTIAL_NAMED_TAG = re.compile(r"<(?:function|parameter)=[^<>\n]{0,200}")
_TAGS = (OPEN_CALL, CLOSE_CALL, CLOSE_FUNCTION, CLOSE_PARAMETER, FUNCTION, PARAMETER)
_LONGEST_TAG = 256  # characters; more than any tag has
_CODE_INDENT = 4  # columns of indentation that make a line code in Markdown


@dataclass(frozen=True)
class Tag:
    """A complete tag: its kind (one of this module's constants), its place, and the name in it."""

    kind: str
    start: int
    end: int
    name: str = ""


class TextBuffer:
    """Text that grows at its end; appending costs only the new characters, however long the text is."""

    def __init__(self) -> None:
        self.text = ""

    def append(self, piece: str) -> None:
        """Add to the end."""
        # With the only reference in a local variable, CPython lets the string grow in place.
        text = self.text
        self.text = ""
        text += piece
        self.text = text

    def drop(self, length: int) -> str:
        """Take characters off the beginning and return them."""
        text = self.text
        self.text = text[length:]
        return text[:length]


def plain_name(text: str) -> str:
    """A name in a tag without the quotes that some models put around it."""
    return text.strip().strip("\"'")


def is_writable(name: str) -> bool:
    """Whether the name of a tool or a parameter survives being written in a call and parsed."""
    return re.fullmatch(_NAME, name) is not None and name == plain_name(name)


def is_partial_tag(text: str) -> bool:
    """Whether `text` may be the beginning of an incomplete tag."""
    if len(text) > _LONGEST_TAG:
        return False
    return any(len(text) < len(tag) and tag.startswith(text) for tag in _TAGS) or bool(
        _PARTIAL_NAMED_TAG.fullmatch(text)
    )


def tag_at(text: str, at: int, end: int) -> Tag | None:
    """The complete tag that begins at a place of the text before `end`."""
    match = _TAG.match(text, at, end)
    if match is None:
        return None
    for kind, group in ((FUNCTION, 1), (PARAMETER, 2)):
        if match[group] is not None:
            name = plain_name(match[group])
            return Tag(kind, at, match.end(), name) if name else None
    return Tag(match[0], at, match.end())


def begins_line(text: str, at: int) -> bool:
    """Whether only indentation stands before a place on its line."""
    start = at
    while start > 0 and text[start - 1] == " ":
        start -= 1
    return at - start < _CODE_INDENT and (start == 0 or text[start - 1] == "\n")
