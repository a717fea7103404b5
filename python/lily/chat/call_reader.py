"""Reads the tool calls of one place in a model's output, as the text arrives.

The format is ``<tool_call>``, ``<function=NAME>``, ``<parameter=NAME>`` value ``</parameter>``, and the closing tags.
Models' mistakes are repaired: missing closing tags, blank lines, a JSON body instead of elements, a missing outer
element. A call is never lost because of its contents; `call_value` finds where a value ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lily.chat.argument_values import ToolSchemas
from lily.chat.call_json import JsonScanner, calls_of, json_object
from lily.chat.call_tags import (
    CLOSE_CALL,
    CLOSE_FUNCTION,
    CLOSE_PARAMETER,
    FUNCTION,
    OPEN_CALL,
    PARAMETER,
    Tag,
    TextBuffer,
)
from lily.chat.call_text import CallText
from lily.chat.call_value import CallValue
from lily.chat.call_writer import CallInProgress

__all__ = ["CallReader", "ReadCall", "ReadCalls"]

_SURPLUS = ("}", "]", ",", ";", "`")


@dataclass(frozen=True)
class ReadCall:
    """A call, where its text begins, and whether its end was written."""

    name: str
    arguments: dict[str, Any]
    start: int
    closed: bool


@dataclass(frozen=True)
class ReadCalls:
    """What was found at the place: calls, where they end, and the text of a call that was cut off.

    No calls and nothing cut off: there is no call here, nor at any tag up to `last_open`.
    """

    calls: list[ReadCall]
    end: int
    partial: str = ""
    last_open: int = 0  # start of the last <tool_call> in the run of them at this place


class CallReader:
    """Reads from ``<tool_call>`` or a bare ``<function=NAME>``, at index 0 of the text, to the end of the calls.

    Call `read` whenever there is more text. It returns None as long as further text may change the result, which does
    not depend on how the text was split.
    """

    def __init__(
        self,
        tools: ToolSchemas,
        buffer: TextBuffer,
        *,
        only_known: bool = False,
        strict: bool = False,
        single: bool = False,
    ) -> None:
        """
        Parameters
        ----------
        tools
            The request's tools.
        buffer
            The text from the place on; it may only grow at its end.
        only_known
            Read only names of tools as calls.
        strict
            The call must begin on the line after ``<tool_call>``.
        single
            Read one call only.
        """
        self._tools = tools
        self._text = CallText(buffer)
        self._only_known = only_known
        self._strict = strict
        self._single = single
        self._truncated = False
        self._at = 0
        self._step: Callable[[], bool] = self._start
        self._wrapped = False
        self._wrapper_start = 0
        self._last_open = 0
        self._calls: list[ReadCall] = []
        self._calls_end = 0  # where the last complete call ends
        self._after_json = False
        self._flat = False  # stop looking for calls in values
        self._name = ""  # of the call that is being read
        self._call_start = self._function_start = 0
        self._arguments: dict[str, Any] = {}
        self._json = JsonScanner(0)
        self._value: CallValue | None = None
        self._result: ReadCalls | None = None

    def read(self, end: int, *, final: bool = False, truncated: bool = False) -> ReadCalls | None:
        """The calls, or None if more text is needed.

        Parameters
        ----------
        end
            Characters of the buffer that may be read.
        final
            The text is complete: always return a result.
        truncated
            The text was cut off: a call still open at its end does not count.
        """
        self._text.end, self._text.final, self._truncated = end, final, truncated
        while self._result is None:
            if not self._step():
                if final:
                    raise AssertionError("a final text must be read to its end")
                return None
        return self._result

    def progress(self) -> list[CallInProgress]:
        """The calls so far, including the one being read; their contents are final."""
        calls = [CallInProgress(call.name, call.arguments) for call in self._calls]
        if self._value is not None:
            calls.append(CallInProgress(self._name, self._arguments, *self._value.certain_text()))
        return calls

    # Each step returns False to wait for more text; never once the text is complete.

    def _start(self) -> bool:
        tag = self._text.tag_at(0)
        if tag is None:
            raise AssertionError("the text must begin with a tag")
        if tag.kind == OPEN_CALL:
            self._wrapped = True
            self._at, self._step = tag.end, self._body
            return True
        return self._begin_function(tag)

    def _body(self) -> bool:
        """Inside <tool_call>, before or after a call."""
        at = self._behind_surplus(self._at) if self._after_json else self._text.skip_fence(self._at)
        if at is None:
            return False
        if at == self._text.end:
            return self._wait_or_end(at)
        if self._single and self._calls and self._text.character(at) in "{[":
            return self._end(self._calls_end)
        if self._text.character(at) in "{[":
            if self._strict and not self._on_next_line(at):
                return self._end(self._calls_end)
            self._call_start = at if self._calls else 0
            self._json, self._step = JsonScanner(at), self._json_call
            self._at = at
            return True
        tag = self._text.tag_at(at)
        if tag is None:
            return self._wait_or_end(at)
        return self._body_tag(tag)

    def _body_tag(self, tag: Tag) -> bool:
        if tag.kind == FUNCTION and not (self._single and self._calls):
            return self._begin_function(tag)
        if tag.kind == OPEN_CALL and (not self._calls or self._flat) and not self._single:
            self._wrapper_start = tag.start if self._calls else 0
            self._last_open = tag.start
            self._at = tag.end
            return True
        if self._calls and tag.kind in (CLOSE_FUNCTION, CLOSE_PARAMETER):
            self._at = self._calls_end = tag.end  # written twice
            return True
        return self._end(tag.end if self._calls and tag.kind == CLOSE_CALL else self._calls_end)

    def _begin_function(self, tag: Tag) -> bool:
        if self._only_known and tag.name not in self._tools:
            return self._end(self._calls_end)
        if self._strict and not self._calls and not (self._on_next_line(tag.start) and self._text.begins_line(tag)):
            return self._end(self._calls_end)
        first = not self._calls or self._wrapper_start > 0
        self._name, self._call_start = tag.name, (self._wrapper_start if first else tag.start)
        self._function_start = tag.start
        self._wrapper_start = 0
        self._arguments = {}
        self._at, self._step = tag.end, self._head
        return True

    def _head(self) -> bool:
        """After <function=NAME>: what follows decides whether it is a call at all."""
        at = self._text.skip_fence(self._at)
        if at is None:
            return False
        if at == self._text.end:
            return self._wait_or_cut_off()
        if self._text.character(at) == "{":
            self._at = at
            self._json, self._step = JsonScanner(at), self._json_arguments
            return True
        tag = self._text.tag_at(at)
        if tag is None:
            return self._wait_or_stray(at)
        if tag.kind == PARAMETER:
            return self._begin_value(tag)
        if tag.kind in (CLOSE_FUNCTION, CLOSE_CALL):
            return self._close_without_parameters(tag)
        if self._wrapped and tag.kind in (OPEN_CALL, FUNCTION) and self._on_next_line(tag.start):
            return self._close_call(tag.start, closed=False)  # its closing tags were left out
        return self._no_call()

    def _close_without_parameters(self, tag: Tag) -> bool:
        if tag.kind == CLOSE_CALL:
            return self._close_call(tag.start, closed=True)
        follower = self._text.follower(tag.end)
        if follower is None:
            return False
        if follower.kind == "text" and not (not self._wrapped and self._text.line_ends(tag.end)):
            return self._no_call()  # a sentence about calls
        return self._close_call(tag.end, closed=True)

    def _json_call(self) -> bool:
        found, value = self._scan_json()
        if found == "open":
            return False
        calls = calls_of(value) if found == "ended" else []
        if found == "cut":
            return self._end(self._text.end, self._text.slice(self._call_start, self._text.end))
        if not calls or (self._only_known and any(name not in self._tools for name, _ in calls)):
            return self._end(self._calls_end)
        for name, arguments in calls:
            fitted = self._tools.fitted(name, arguments)
            self._calls.append(ReadCall(name, fitted, self._call_start, closed=True))
        self._at = self._calls_end = self._json.at
        self._after_json, self._step = True, self._body
        return True

    def _json_arguments(self) -> bool:
        found, value = self._scan_json()
        if found == "open":
            return False
        if found == "cut":
            return self._cut_off()
        arguments = json_object(value) if found == "ended" else None
        if arguments is None:
            return self._stray_or_none(self._at)
        self._arguments = self._tools.fitted(self._name, arguments)
        self._at, self._step = self._json.at, self._behind_json
        return True

    def _scan_json(self) -> tuple[str, str]:
        """Whether the value continues, has ended, is not a value, or was cut off; and its text."""
        found: str = self._json.scan(self._text.buffer.text, self._text.end)
        if found == "open" and self._text.final:
            found = "cut" if self._truncated else "wrong"
        return found, self._text.slice(self._at, self._json.at) if found == "ended" else ""

    def _behind_json(self) -> bool:
        at = self._behind_surplus(self._at)
        if at == self._text.end:
            if not self._text.final:
                return False
            return self._cut_off() if self._truncated else self._close_call(at, closed=False)
        tag = self._text.tag_at(at)
        if tag is None:
            return self._wait_or_stray(at)
        if tag.kind == PARAMETER:
            return self._begin_value(tag)
        if tag.kind == CLOSE_PARAMETER:
            self._at = tag.end
            return True
        closed = tag.kind in (CLOSE_FUNCTION, CLOSE_CALL)
        return self._close_call(tag.end if tag.kind == CLOSE_FUNCTION else tag.start, closed=closed)

    def _stray_or_none(self, at: int) -> bool:
        """Text where a parameter is expected: a malformed call, if it stands on its own lines in a wrapper."""
        if not self._wrapped or self._strict or not self._on_next_line(at):
            return self._no_call()
        self._at, self._step = at, self._stray
        return True

    def _stray(self) -> bool:
        tag, self._at = self._text.find_tag(self._at)
        if tag is None:
            if not self._text.final:
                return False
            return self._cut_off() if self._truncated else self._no_call()
        if tag.kind in (OPEN_CALL, FUNCTION):
            return self._no_call()
        if tag.kind == PARAMETER and self._text.begins_line(tag):
            return self._begin_value(tag)
        if tag.kind == CLOSE_CALL and self._text.begins_line(tag):
            return self._close_call(tag.start, closed=True)
        if tag.kind == CLOSE_FUNCTION:
            follower = self._text.follower(tag.end)
            if follower is None:
                return False
            if follower.kind == CLOSE_CALL:
                return self._close_call(tag.end, closed=True)
        self._at = tag.end
        return True

    def _begin_value(self, tag: Tag) -> bool:
        self._value = CallValue(
            self._text, self._tools, self._name, tag, given=self._arguments, wrapped=self._wrapped, flat=self._flat
        )
        self._step = self._in_value
        return True

    def _in_value(self) -> bool:
        value = self._value
        if value is None:
            raise AssertionError("no value is open")
        end = value.find_end(truncated=self._truncated)
        if end is None:
            if not self._text.final:
                return False
            self._value = None
            return self._cut_off()
        self._arguments[value.name] = value.converted(end)
        self._flat = value.flat
        self._value = None
        self._at, self._step = end, self._behind_value
        return True

    def _behind_value(self) -> bool:
        """At the tags that have ended a value."""
        closed = False
        while True:
            at = self._text.skip_space(self._at)
            tag = self._text.tag_at(at)
            if tag is None and self._truncated and not closed and self._text.may_be_tag(at):
                return self._cut_off()
            if tag is None:
                return self._close_call(self._at, closed=closed)
            if tag.kind == PARAMETER and not closed:
                return self._begin_value(tag)
            if tag.kind == CLOSE_FUNCTION:
                closed = True
            elif tag.kind == CLOSE_CALL:
                return self._close_call(self._at, closed=True)
            elif tag.kind != CLOSE_PARAMETER:
                return self._close_call(self._at, closed=closed)
            self._at = tag.end

    # -- ends ------------------------------------------------------------------------------------------------------

    def _close_call(self, end: int, *, closed: bool) -> bool:
        self._calls.append(ReadCall(self._name, self._arguments, self._call_start, closed))
        self._calls_end = end
        if not self._wrapped:
            return self._end(end)
        self._at, self._step = end, self._body
        return True

    def _no_call(self) -> bool:
        return self._end(self._calls_end)

    def _cut_off(self) -> bool:
        return self._end(self._text.end, self._text.slice(self._function_start, self._text.end))

    def _end(self, end: int, partial: str = "") -> bool:
        self._result = ReadCalls(self._calls, end, partial, self._last_open)
        return True

    def _wait_or_end(self, at: int) -> bool:
        """There is no complete tag here: either one is beginning, or the calls have ended before."""
        if not self._text.may_be_tag(at):
            return self._end(self._calls_end)
        if not self._text.final:
            return False
        if self._truncated and not self._calls:
            return self._end(self._text.end, self._text.slice(0, self._text.end))
        rest = self._text.slice(at, self._text.end)
        swallowed = self._calls and (self._truncated or not rest or rest.startswith("</"))
        return self._end(self._text.end if swallowed else self._calls_end)

    def _wait_or_stray(self, at: int) -> bool:
        """There is no complete tag where a parameter or the end of the call is expected."""
        return self._wait_or_cut_off() if self._text.may_be_tag(at) else self._stray_or_none(at)

    def _behind_surplus(self, at: int) -> int:
        """The place after superfluous text that models write after JSON: braces, and the fence around it."""
        at = self._text.skip_space(at)
        while self._text.character(at) in _SURPLUS:
            at = self._text.skip_space(at + 1)
        return at

    def _wait_or_cut_off(self) -> bool:
        if not self._text.final:
            return False
        return self._cut_off() if self._truncated else self._no_call()

    def _on_next_line(self, at: int) -> bool:
        """Whether a line ends between the step's beginning and the place."""
        return "\n" in self._text.slice(self._at, at)
