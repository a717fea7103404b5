"""Finds the end of a parameter's value, whose text may itself contain call tags.

Only a declared parameter that was not given yet, or the end of the call, can follow a value; the end in a wrapper is
``</parameter>``, ``</function>`` and ``</tool_call>``. Calls and parameters that the value quotes completely are
skipped. An end that lacks a tag counts if the output is over and no proper end has come.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

from lily.chat.argument_values import ToolSchemas
from lily.chat.call_json import JsonScanner
from lily.chat.call_tags import (
    CLOSE_CALL,
    CLOSE_FUNCTION,
    CLOSE_PARAMETER,
    FUNCTION,
    OPEN_CALL,
    PARAMETER,
    Tag,
)
from lily.chat.call_text import CallText
from lily.chat.call_writer import TextSoFar

__all__ = ["CallValue"]

_REPEATED = 4  # times that a closing tag may be repeated
_Ending = Literal["next parameter", "end of call", "damaged end", "text"]


@dataclass
class _QuotedCall:
    """A call quoted in the value's text."""

    kind: str  # of its opening tag
    parameter_is_open: bool = False


@dataclass
class _OtherParameters:
    """Parameters that begin before this one's closing tag: the next ones, if the tag is missing, or quoted ones.

    They are quoted if text follows one of them, or another closing tag, which is this one's. If the call ends after
    them, they are the next ones.
    """

    end: int  # of this value, if they are the next ones
    names: list[str]
    is_open: bool = True  # the last one


class CallValue:
    """The value of one parameter, read from its opening tag on.

    Attributes
    ----------
    name : str
        The parameter.
    flat : bool
        Tags are taken in order: what looked like a quoted call was not one.
    """

    def __init__(
        self,
        text: CallText,
        tools: ToolSchemas,
        function: str,
        tag: Tag,
        *,
        given: Collection[str],
        wrapped: bool,
        flat: bool,
    ) -> None:
        """`given`: the parameters before this one; `wrapped`: whether <tool_call> is open."""
        self.name = tag.name
        self.flat = flat
        self._text = text
        self._tools = tools
        self._function = function
        self._given = {*given, tag.name}
        self._wrapped = wrapped
        self._start = self._at = tag.end
        self._is_text = tools.is_text(function, tag.name)
        self._json = None if self._is_text else JsonScanner(tag.end)
        self._json_has_ended = False
        self._quoted_calls: list[_QuotedCall] = []
        self._quoted_functions = 0  # without <tool_call>, in a value whose own call has it
        self._quoted_parameters = 0  # on lines of their own
        self._quoted_in_line: int | None = None  # the end of a tag in running text
        self._passed: tuple[int, int] | None = None  # a closing tag taken for a quoted one, and what follows it
        self._between: int | None = None  # an opening tag right behind a closing one: such a pair quotes no parameter
        self._others: _OtherParameters | None = None
        self._damaged_end: int | None = None  # the first

    def find_end(self, *, truncated: bool) -> int | None:
        """Where the value ends; None if not known yet, or if the text was cut off before."""
        if self._json is not None:
            end = self._end_of_json(self._json)
            if end is not False:
                return end
            self._json = None
        while True:
            tag, self._at = self._text.find_tag(self._at)
            if tag is None:
                return self._end_of_text(truncated) if self._text.final else None
            found = self._look_at(tag)
            if found is None:
                return None
            if found is not False:
                return found
            self._at = tag.end

    def converted(self, end: int) -> Any:
        """The value up to its end, converted to its schema's type."""
        value = _without_border_newlines(self._text.slice(self._start, end))
        return self._tools.convert(self._function, self.name, value)

    def certain_text(self) -> tuple[str | None, TextSoFar]:
        """The parameter, and the text certain to be part of its value; no parameter if not known."""
        start, end = self._start, min([self._at, *self._possible_ends()])
        if self._passed is not None and self._passed[1] >= self._at:
            end = min(end, self._passed[0])
        text = self._text.buffer.text
        if start == end or text[start : min(end, start + 2)] == "\r":
            return None, TextSoFar(self._text.buffer, start, start)
        start += 2 if text.startswith("\r\n", start, end) else text[start] == "\n"
        # The newline before the closing tag is not part of the value.
        if start < end and text[end - 1] == "\n":
            end -= 1
        if start < end and text[end - 1] == "\r":
            end -= 1
        return (self.name if self._is_text else None), TextSoFar(self._text.buffer, start, end)

    # -- tags in the value: False goes on behind one, None waits for more text, a number is the end -----------------

    def _end_of_json(self, scanner: JsonScanner) -> int | Literal[False] | None:
        """The end of an array or object, whose strings may contain any tag; False if it is neither."""
        begin = self._text.skip_space(self._start)
        if begin == self._text.end and not self._text.final:
            return None
        if self._text.character(begin) not in ("{", "["):
            return False
        if not self._json_has_ended:
            found = scanner.scan(self._text.buffer.text, self._text.end)
            if found != "ended":
                return None if found == "open" and not self._text.final else False
            self._json_has_ended = True
        tag = self._text.follower(scanner.at)
        if tag is None or (tag.kind == CLOSE_PARAMETER and self._ending(tag) is None):
            return None
        return tag.start if tag.kind == CLOSE_PARAMETER else False

    def _look_at(self, tag: Tag) -> int | Literal[False] | None:
        if tag.kind in (OPEN_CALL, FUNCTION) and not (tag.kind == FUNCTION and self._quoted_calls):
            return self._opening_call(tag)
        if tag.kind == PARAMETER:
            return self._opening_parameter(tag)
        if tag.kind == CLOSE_PARAMETER:
            return self._closing_parameter(tag)
        if tag.kind in (CLOSE_FUNCTION, CLOSE_CALL):
            return self._closing_call(tag)
        return False

    def _opening_call(self, tag: Tag) -> Literal[False] | int | None:
        opens = self._opens_call(tag)
        if opens is None:
            return None
        if tag.kind == FUNCTION and self._wrapped:
            self._quoted_functions += opens
            return False
        if opens and self.flat and self._text.begins_line(tag):
            return min([tag.start, *self._possible_ends()])
        if opens and not self.flat:
            self._quoted_calls.append(_QuotedCall(tag.kind))
            if self._text.begins_line(tag):
                self._note_damaged_end(tag.start)
        return False

    def _opens_call(self, tag: Tag) -> bool | None:
        """Whether a tag stands where the template would write it, so that it may begin a call."""
        if tag.kind == FUNCTION and not self._text.begins_line(tag):
            return False
        at = self._text.skip_space(tag.end)
        if self._text.character(at) == "{":
            return True
        follower = self._text.follower(tag.end)
        if follower is None:
            return None
        return follower.kind in ((FUNCTION,) if tag.kind == OPEN_CALL else (PARAMETER, CLOSE_FUNCTION))

    def _opening_parameter(self, tag: Tag) -> Literal[False] | None:
        if self._quoted_calls:
            self._quoted_calls[-1].parameter_is_open = True
        elif tag.start == self._between:
            pass
        elif not self._text.begins_line(tag):
            self._quoted_in_line = tag.end
        elif (alone := self._stands_alone(tag)) is None:
            return None
        elif not alone:
            self._quoted_in_line = tag.end
        elif self._others is not None:
            self._others.names.append(tag.name)
            self._others.is_open = True
        elif self._may_be_next(tag):
            passed = self._passed
            end = tag.start if passed is None or passed[1] != tag.start else passed[0]
            self._others = _OtherParameters(end, [tag.name])
        else:
            self._quoted_parameters += 1
        return False

    def _stands_alone(self, tag: Tag) -> bool | None:
        """Whether a tag is alone on its line, like this parameter's; None if not known yet."""
        has_line = self._text.slice(self._start, self._start + 2).startswith(("\n", "\r\n"))
        may_be_next = self._others is not None or self._may_be_next(tag)
        return self._text.line_ends(tag.end) if has_line or not may_be_next else True

    def _closing_parameter(self, tag: Tag) -> int | Literal[False] | None:
        if self._quoted_calls and self._quoted_calls[-1].parameter_is_open:
            self._quoted_calls[-1].parameter_is_open = False
            return False
        if self._closes_in_line(tag):
            return False
        ending = self._ending(tag)
        if ending is None:
            return None
        others = self._others
        if others is not None and others.is_open:
            others.is_open = False
            if ending == "end of call" or (ending == "damaged end" and self.flat):
                return others.end
            if ending == "damaged end":
                self._note_damaged_end(others.end)
            if ending != "next parameter":
                self._others = None
                self._passed = (tag.start, self._text.skip_space(tag.end))
            return False
        self._others = None
        if ending == "end of call" or (ending == "next parameter" and not self._quoted_parameters):
            return tag.start
        if self._quoted_parameters:
            self._quoted_parameters -= 1
            self._passed = (tag.start, self._text.skip_space(tag.end))
        elif ending == "text":
            self._between = self._text.skip_space(tag.end)
        elif ending == "damaged end":
            self._note_damaged_end(tag.start)
            if self.flat:
                return tag.start
        return False

    def _closing_call(self, tag: Tag) -> Literal[False] | int | None:
        kinds = [quoted.kind for quoted in self._quoted_calls]
        opening = OPEN_CALL if tag.kind == CLOSE_CALL else FUNCTION
        if opening in kinds:
            while self._quoted_calls.pop().kind != opening:
                pass
            return False
        if self._quoted_calls:
            return False
        follower = self._text.follower(tag.end)
        if follower is None:
            return None
        if tag.kind == CLOSE_FUNCTION:
            self._quoted_functions = max(0, self._quoted_functions - 1)
        ends = ("end", CLOSE_CALL, OPEN_CALL) if tag.kind == CLOSE_FUNCTION else ("end", OPEN_CALL)
        if follower.kind in ends or (tag.kind == CLOSE_CALL and self._text.begins_line(tag)):
            self._note_damaged_end(tag.start)
            if self.flat:
                return min(self._possible_ends())
        return False

    def _end_of_text(self, truncated: bool) -> int | None:
        if truncated:
            return None
        ends = self._possible_ends()
        if ends:
            self.flat = True
            return min(ends)
        # The beginning of a closing tag is not part of the value's text.
        last = self._text.buffer.text.rfind("</", self._start, self._text.end)
        return last if last >= 0 and self._text.may_be_tag(last) else self._text.end

    # -- helpers ---------------------------------------------------------------------------------------------------

    def _ending(self, tag: Tag) -> _Ending | None:
        """What ``</parameter>`` at a place means, judged by what follows; None if not known yet."""
        follower = self._text.follower(tag.end)
        if follower is None:
            return None
        if follower.kind == PARAMETER:
            return "next parameter" if self._can_follow(follower.name) else "text"
        if follower.kind == "end":
            return "end of call"
        if follower.kind == CLOSE_FUNCTION:
            return self._ending_behind_function(follower)
        if follower.kind in (CLOSE_CALL, OPEN_CALL, FUNCTION):
            return self._ending_behind_call(follower)
        return "text"

    def _ending_behind_function(self, tag: Tag) -> _Ending | None:
        follower = self._text.follower(tag.end)
        for _ in range(_REPEATED):
            if follower is not None and follower.kind == CLOSE_FUNCTION:
                follower = self._text.follower(follower.end)
        if follower is None:
            return None
        if follower.kind == CLOSE_PARAMETER:
            return "text"
        if not self._wrapped:
            return "end of call"
        if follower.kind == FUNCTION:
            return "end of call" if follower.name in self._tools and not self._quoted_functions else "text"
        return "end of call" if follower.kind in (CLOSE_CALL, "end") else "damaged end"

    def _ending_behind_call(self, tag: Tag) -> _Ending | None:
        if tag.kind != CLOSE_CALL or not self._wrapped:
            return "damaged end"
        follower = self._text.follower(tag.end)
        if follower is None:
            return None
        return "end of call" if follower.kind == "end" else "damaged end"

    def _can_follow(self, name: str) -> bool:
        """Whether a parameter may be the next one."""
        if name in self._given or (self._others is not None and name in self._others.names):
            return False
        schema = self._tools.parameters(self._function)
        declared = self._tools.properties(self._function)
        return (
            not declared
            or name in declared
            or bool(schema.get("additionalProperties") or schema.get("patternProperties"))
        )

    def _may_be_next(self, tag: Tag) -> bool:
        """Whether this may be the next parameter, with this one's closing tag missing or taken for a quoted one."""
        is_behind_close = self._passed is not None and self._passed[1] == tag.start
        if (
            self._damaged_end is not None
            or self._quoted_parameters
            or (self._between is not None and not is_behind_close)
        ):
            return False
        return self._can_follow(tag.name)

    def _closes_in_line(self, tag: Tag) -> bool:
        start, self._quoted_in_line = self._quoted_in_line, None
        return start is not None and "\n" not in self._text.slice(start, tag.start)

    def _possible_ends(self) -> list[int]:
        others = None if self._others is None else self._others.end
        return [end for end in (self._damaged_end, others) if end is not None]

    def _note_damaged_end(self, at: int) -> None:
        if self._damaged_end is None:
            self._damaged_end = at


def _without_border_newlines(text: str) -> str:
    start = 2 if text.startswith("\r\n") else 1 if text.startswith("\n") else 0
    text = text[start:]
    end = 2 if text.endswith("\r\n") else 1 if text.endswith("\n") else 0
    return text[: len(text) - end]
