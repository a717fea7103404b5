"""Reads the tool calls of one place in a model's output, as the text arrives.

The format is ``<tool_call>``, ``<function=NAME>``, ``<parameter=NAME>`` value ``</parameter>``, and the closing tags.
What models get wrong is mended: missing closing tags, blank lines, a JSON body instead of elements, the outer element
left out. A call is never lost because of what is inside it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lily.chat.argument_values import ToolSchemas, load_json
from lily.chat.call_writer import CallInProgress

__all__ = ["TAGS", "CallReader", "ReadCalls", "is_partial_tag", "is_writable"]

OPEN_CALL, CLOSE_CALL = "<tool_call>", "</tool_call>"
CLOSE_FUNCTION, CLOSE_PARAMETER = "</function>", "</parameter>"
_NAME = r"[^<>\n]{1,200}"
_TAG = re.compile(rf"</?tool_call>|</function>|</parameter>|<function=({_NAME})>|<parameter=({_NAME})>")
_PARTIAL_NAMED_TAG = re.compile(r"<(?:function|parameter)=[^<>\n]{0,200}")
TAGS = (OPEN_CALL, CLOSE_CALL, CLOSE_FUNCTION, CLOSE_PARAMETER, "<function=", "<parameter=")


@dataclass(frozen=True)
class ReadCalls:
    """What stands at the place: calls (name, arguments), where they end, and the text of a call that was cut off.

    No calls and nothing cut off means that it is no call at all, and that plain text goes on at `end`.
    """

    calls: list[tuple[str, dict[str, Any]]]
    end: int
    partial: str = ""


@dataclass(frozen=True)
class _Tag:
    kind: str  # a closing tag, "<tool_call>", "<function=" or "<parameter="
    start: int
    end: int
    name: str = ""


@dataclass
class _OpenCall:
    name: str
    start: int
    arguments: dict[str, Any] = field(default_factory=dict)
    stray_text: str = ""


def is_writable(name: str) -> bool:
    """Whether the name of a tool or a parameter comes back as it is from a call that is written with it."""
    return re.fullmatch(_NAME, name) is not None and name == _plain_name(name)


def is_partial_tag(text: str) -> bool:
    """Whether `text` may be the beginning of a tag that is not complete."""
    return any(len(text) < len(tag) and tag.startswith(text) for tag in TAGS) or bool(
        _PARTIAL_NAMED_TAG.fullmatch(text)
    )


class CallReader:
    """Reads from ``<tool_call>`` or a bare ``<function=NAME>``, at index 0 of the text, to the end of the calls.

    `read` is given the text from there on, longer each time. It returns None while what comes next may change the
    result; the result does not depend on how the text was split.
    """

    def __init__(self, tools: ToolSchemas, *, only_known: bool = False) -> None:
        """`only_known`: names that are no tool's are not read as calls."""
        self._tools = tools
        self._only_known = only_known
        self._text = ""
        self._final = self._truncated = False
        self._at = 0
        self._step: Callable[[], bool] = self._start
        self._wrapped = False
        self._calls: list[tuple[str, dict[str, Any]]] = []
        self._open = _OpenCall("", 0)
        self._parameter = ("", 0)  # name, start of the value
        self._salvage: int | None = None  # where the open value ends if no proper end comes
        self._result: ReadCalls | None = None

    def read(self, text: str, *, final: bool = False, truncated: bool = False) -> ReadCalls | None:
        """The calls, or None if more text is needed.

        Parameters
        ----------
        text
            All text from the place on.
        final
            No more comes: a result is returned.
        truncated
            The text was cut off: a call that is open at its end is not a call.
        """
        self._text, self._final, self._truncated = text, final, truncated
        while self._result is None:
            if not self._step():
                if final:
                    raise AssertionError("a final text must be read to its end")
                return None
        return self._result

    def progress(self) -> list[CallInProgress]:
        """The calls so far, the one that is being read included; what they hold is certain."""
        calls = [CallInProgress(name, arguments) for name, arguments in self._calls]
        if self._step == self._function:
            calls.append(CallInProgress(self._open.name, self._open.arguments))
        elif self._step == self._value:
            calls.append(CallInProgress(self._open.name, self._open.arguments, *self._open_text()))
        return calls

    # Each step returns False to wait for more text. With all of the text there it never does.

    def _start(self) -> bool:
        tag = self._tag_at(0)
        if tag is None:
            return self._wait_or_end(self._text)
        if tag.kind == OPEN_CALL:
            self._wrapped = True
            self._at, self._step = tag.end, self._body
            return True
        return self._begin_function(tag)

    def _body(self) -> bool:
        """Between calls, inside <tool_call>."""
        text = self._text
        at = self._skip_space(self._at)
        if at == len(text):
            return self._wait_or_end("")
        if text[at] in "{[" and not self._calls:
            self._at = self._open.start = at
            self._step = self._json
            return True
        tag = self._tag_at(at)
        if tag is None:
            return self._wait_or_end(text[at:])
        if tag.kind == "<function=":
            return self._begin_function(tag)
        if tag.kind == OPEN_CALL and not self._calls:
            self._at = tag.end
            return True
        return self._end(tag.end if tag.kind == CLOSE_CALL else self._at)

    def _begin_function(self, tag: _Tag) -> bool:
        if self._only_known and tag.name not in self._tools:
            return self._end(tag.start)
        self._open = _OpenCall(tag.name, tag.start)
        self._at, self._step = tag.end, self._function
        return True

    def _function(self) -> bool:
        """Between parameters."""
        tag = self._find_tag()
        if tag is None:
            if not self._final:
                return False
            self._open.stray_text += self._text[self._at :]
            return self._cut_off_or(self._close_call, len(self._text))
        self._open.stray_text += self._text[self._at : tag.start]
        self._at = tag.end
        if tag.kind == "<parameter=":
            self._parameter = (tag.name, tag.end)
            self._salvage = None
            self._step = self._value
            return True
        if tag.kind == CLOSE_PARAMETER:
            return True
        return self._close_call(tag.end if tag.kind in (CLOSE_FUNCTION, CLOSE_CALL) else tag.start, tag.kind)

    def _value(self) -> bool:
        """Inside a parameter. Its text may hold tags: only those in the right company end it."""
        tag = self._find_tag()
        if tag is None:
            if not self._final:
                return False
            if self._salvage is not None:
                return self._close_value(self._salvage)
            return self._cut_off_or(self._close_value, self._without_partial_tag())
        if tag.kind == OPEN_CALL and self._salvage is not None:
            return self._close_value(self._salvage)
        if tag.kind == "<parameter=" and self._is_next_parameter(tag):
            return self._close_value(tag.start)
        if tag.kind in (CLOSE_PARAMETER, CLOSE_FUNCTION):
            follower = self._follower(tag.end)
            if follower is None:
                return False
            if tag.kind == CLOSE_PARAMETER and follower not in ("text", CLOSE_PARAMETER):
                return self._close_value(tag.start)
            if self._salvage is None and (tag.kind == CLOSE_PARAMETER or follower in (CLOSE_CALL, OPEN_CALL, "end")):
                self._salvage = tag.start
        elif tag.kind == CLOSE_CALL and self._salvage is None:
            self._salvage = tag.start
        self._at = tag.end
        return True

    def _json(self) -> bool:
        tag = self._find_tag()
        if tag is not None and tag.kind not in (OPEN_CALL, CLOSE_CALL):
            self._at = tag.end
            return True
        if tag is None and not self._final:
            return False
        end = len(self._text) if tag is None else tag.start
        calls = _calls_of_json(self._text[self._open.start : end])
        if self._only_known:
            calls = [call for call in calls if call[0] in self._tools]
        if calls:
            self._calls = calls
            return self._end(tag.end if tag is not None and tag.kind == CLOSE_CALL else end)
        if tag is not None and tag.kind == CLOSE_CALL:
            self._at = tag.end  # perhaps inside a string
            return True
        if tag is None and self._truncated:
            return self._end(end, self._text)
        return self._end(self._open.start)

    # -- helpers ---------------------------------------------------------------------------------------------------

    def _open_text(self) -> tuple[str | None, str]:
        """The parameter that is being read and the text that is certain to be part of its value."""
        name, start = self._parameter
        text = self._text[start : self._at if self._salvage is None else self._salvage]
        if not self._tools.is_text(self._open.name, name) or text in ("", "\r"):
            return None, ""
        return name, _without_border_newlines(text).removesuffix("\r")

    def _close_value(self, end: int) -> bool:
        name, start = self._parameter
        value = _without_border_newlines(self._text[start:end])
        self._open.arguments[name] = self._tools.convert(self._open.name, name, value)
        self._at, self._step = end, self._function
        return True

    def _close_call(self, end: int, kind: str = "") -> bool:
        call = self._open
        if not call.arguments and call.stray_text.lstrip()[:1] == "{":
            arguments = _json_object(call.stray_text)
            call.arguments.update(arguments or {})
        self._calls.append((call.name, call.arguments))
        if not self._wrapped or kind == CLOSE_CALL:
            return self._end(end)
        self._at, self._step = end, self._body
        return True

    def _cut_off_or(self, close: Callable[[int], bool], end: int) -> bool:
        if self._truncated:
            return self._end(len(self._text), self._text[self._open.start :])
        return close(end)

    def _end(self, end: int, partial: str = "") -> bool:
        self._result = ReadCalls(self._calls, end, partial)
        return True

    def _wait_or_end(self, rest: str) -> bool:
        """`rest` holds no complete tag: it is the beginning of one, or the calls have ended before it."""
        if rest and not is_partial_tag(rest):
            return self._end(self._at)
        if not self._final:
            return False
        return self._end(len(self._text), self._text if self._truncated and not self._calls else "")

    def _skip_space(self, at: int) -> int:
        text = self._text
        while at < len(text) and text[at].isspace():
            at += 1
        return at

    def _tag_at(self, at: int) -> _Tag | None:
        match = _TAG.match(self._text, at)
        if match is None:
            return None
        for kind, group in (("<function=", 1), ("<parameter=", 2)):
            if match[group] is not None:
                name = _plain_name(match[group])
                return _Tag(kind, at, match.end(), name) if name else None
        return _Tag(match[0], at, match.end())

    def _find_tag(self) -> _Tag | None:
        """The next complete tag; None if there is none yet, and then what cannot be one is not looked at again."""
        start = self._at
        while (found := self._text.find("<", start)) >= 0:
            tag = self._tag_at(found)
            if tag is not None:
                return tag
            if not self._final and is_partial_tag(self._text[found : found + 256]):
                break
            start = found + 1
        if self._step != self._function:  # which collects the text on the way
            self._at = found if found >= 0 else len(self._text)
        return None

    def _follower(self, at: int) -> str | None:
        """What comes after white space: a kind of tag, "text" or "end"; None if that is not known yet."""
        at = self._skip_space(at)
        if at == len(self._text):
            return "end" if self._final else None
        tag = self._tag_at(at)
        if tag is not None:
            return tag.kind
        return None if not self._final and is_partial_tag(self._text[at : at + 256]) else "text"

    def _is_next_parameter(self, tag: _Tag) -> bool:
        # The closing tag was left out: on a new line, and a parameter of this tool that was not given yet.
        known = tag.name in self._tools.properties(self._open.name)
        given = tag.name in self._open.arguments or tag.name == self._parameter[0]
        return known and not given and self._text[tag.start - 1] == "\n" and self._salvage is None

    def _without_partial_tag(self) -> int:
        found = self._text.rfind("</", self._parameter[1])
        return found if found >= 0 and is_partial_tag(self._text[found:]) else len(self._text)


def _plain_name(text: str) -> str:
    """A name in a tag without the quotes that some models put around it."""
    return text.strip().strip("\"'")


def _without_border_newlines(text: str) -> str:
    start = 2 if text.startswith("\r\n") else 1 if text.startswith("\n") else 0
    text = text[start:]
    end = 2 if text.endswith("\r\n") else 1 if text.endswith("\n") else 0
    return text[: len(text) - end]


def _json_object(text: str) -> dict[str, Any] | None:
    text = text.strip()
    try:
        value = load_json(text)
    except ValueError:
        try:
            # Something behind the object, such as one brace too many.
            _, end = json.JSONDecoder().raw_decode(text)
            value = load_json(text[:end])
        except (ValueError, RecursionError):
            return None
    return value if isinstance(value, dict) else None


def _calls_of_json(text: str) -> list[tuple[str, dict[str, Any]]]:
    """The calls of {"name": ..., "arguments": {...}}, or of a list of such objects."""
    if text.startswith("["):
        try:
            entries = load_json(text)
        except ValueError:
            return []
    else:
        entries = [_json_object(text)]
    calls = []
    for entry in entries:
        inner = entry.get("function") if isinstance(entry, dict) else None
        fields = inner if isinstance(inner, dict) else entry
        if not isinstance(fields, dict) or not isinstance(fields.get("name"), str) or not fields["name"]:
            return []
        arguments = fields.get("arguments", fields.get("parameters", {}))
        if isinstance(arguments, str):
            arguments = _json_object(arguments)
        if not isinstance(arguments, dict):
            return []
        calls.append((fields["name"], arguments))
    return calls
