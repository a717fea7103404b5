"""Splits a model's output into reasoning, content and tool calls, as the text arrives."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from lily.arguments import as_flag, check_text
from lily.chat.argument_values import ToolSchemas
from lily.chat.call_reader import CallReader, ReadCall, ReadCalls
from lily.chat.call_tags import (
    CLOSE_CALL,
    CLOSE_FUNCTION,
    CLOSE_PARAMETER,
    OPEN_CALL,
    TextBuffer,
    is_partial_tag,
    tag_at,
)
from lily.chat.call_writer import CallWriter
from lily.chat.events import ToolCall, ToolCallEvent
from lily.chat.markdown_code import MarkdownCode
from lily.chat.output_text import OutputText, ParsedPiece
from lily.errors import InvalidArgumentError
from lily.quoting import quoted

__all__ = ["OutputParser", "ParsedPiece", "thinking_is_open"]

OPEN_THINK, CLOSE_THINK = "<think>", "</think>"
_THINK_TAGS = (OPEN_THINK, CLOSE_THINK)
_MARKS = re.compile(r"</?think>|</?tool_call>|</function>|</parameter>|<function=[^<>\n]{1,200}>")
_CLOSING = (CLOSE_CALL, CLOSE_FUNCTION, CLOSE_PARAMETER)
_LONGEST_MARK = 256  # characters
_CHUNK = 4096  # characters


def thinking_is_open(prompt: str) -> bool:
    """Whether the output that follows a rendered prompt begins inside a thinking block.

    The opening tag is part of the prompt, so that it never shows up in the output: the end of the prompt tells.
    """
    check_text("prompt", prompt)
    return prompt.rstrip().endswith(OPEN_THINK)


@dataclass
class _Draft:
    """Calls that count only if the turn ends behind them, and their text."""

    calls: list[ReadCall]
    text: str
    start: int  # characters of the output before it
    in_thinking: bool


@dataclass(frozen=True)
class _NoCalls:
    """Tags that follow one another and of which the first was found to begin no call: so do the others."""

    last: int  # characters of the output before the last one
    only_known: bool
    strict: bool  # how the first was read

    def hold(self, at: int, only_known: bool, strict: bool) -> bool:
        """Whether a tag at a place begins no call when it is read like this."""
        return at <= self.last and only_known >= self.only_known and strict >= self.strict


class OutputParser:
    """One answer's parser; the pieces do not depend on how the text was split.

    ``<think>`` where it opens the answer and ``</think>`` with the newlines after it are no text; inside Markdown code
    of the content they are.

    A call begins where the chat template begins one: with ``<tool_call>``, followed by ``<function=NAME>`` or by JSON,
    or with ``<function=NAME>`` of a known tool at the beginning of a line. Elsewhere these tags are text, and so is a
    call in Markdown code. Some calls may still turn out to be talk: one in a thinking block, one behind other text on
    its line, and one behind a fence or a backtick that is not closed. Each of them counts only if it names a known
    tool, is complete, and the output ends right behind it, apart from other calls; until then nothing of it comes out,
    and otherwise all of its text does. White space around calls is not content.
    """

    def __init__(
        self,
        *,
        reasoning: bool,
        tools: ToolSchemas | None = None,
        call_deltas: bool = False,
        parallel_calls: bool = True,
        begun: bool = False,
    ) -> None:
        """
        Parameters
        ----------
        reasoning
            Whether the output begins inside a thinking block; see `thinking_is_open`.
        tools
            The request's tools; without any, calls are text.
        call_deltas
            Return pieces of calls as they are written, too.
        parallel_calls
            False: the output ends with the first call.
        begun
            The output goes on with a text: white space at its beginning counts, and no thinking opens.
        """
        if not isinstance(tools, (ToolSchemas, type(None))):
            raise InvalidArgumentError(f"tools must be lily.chat.ToolSchemas, not {quoted(tools)}")
        begun = as_flag("begun", begun)
        self._tools = tools if tools is not None and tools.names else None
        self._reasoning = reasoning = as_flag("reasoning", reasoning)
        self._call_deltas = as_flag("call_deltas", call_deltas)
        self._parallel_calls = as_flag("parallel_calls", parallel_calls)
        self._buffer = TextBuffer()  # not yet consumed
        self._start = 0  # characters of the output before it
        self._output = OutputText(reasoning=reasoning, calls=self._tools is not None, begun=begun)
        self._code = MarkdownCode(begins_line=not begun)
        self._fenced: tuple[int, list[str]] | None = None  # text behind a possible call in a fence, and its place
        self._fence_stays_open = False
        self._thinks_in_content = False  # a thinking block that opened behind other text is text, calls and all
        self._reader: CallReader | None = None
        self._no_calls: _NoCalls | None = None
        self._reads_draft = self._reads_strictly = False
        self._draft: _Draft | None = None
        self._think_searched = 0  # characters of the buffer in which no </think> begins
        self._writers: list[CallWriter] = []  # of the calls that the reader has begun
        self._calls: list[ToolCall] = []
        self._left_out = False  # a call behind the one that is allowed
        self.ended = False  #: no more is taken: the one call that is allowed has come
        self.partial_tool_call = ""  #: text of a call that the end of the output cut off

    @property
    def state(self) -> Literal["reasoning", "content", "call"]:
        """Where the text that comes next belongs."""
        if self._reader is not None:
            return "call"
        return "reasoning" if self._reasoning else "content"

    @property
    def in_reasoning(self) -> bool:
        """Whether the thinking block is open, perhaps with a call inside."""
        return self._reasoning

    @property
    def is_whole(self) -> bool:
        """Whether nothing was left out behind the call that has ended the output."""
        return not self._left_out and not self._buffer.text.strip()

    @property
    def call_count(self) -> int:
        """Number of calls so far."""
        return len(self._calls)

    def feed(self, text: str) -> list[ParsedPiece]:
        """Take more text and return what it completes."""
        if not isinstance(text, str):
            raise InvalidArgumentError(f"text must be a str, not {type(text).__name__}")
        self._take_in(text)
        return self._output.take()

    def finish(self, *, truncated: bool = False) -> list[ParsedPiece]:
        """Return what was held back, with unfinished calls completed.

        If the output was cut off (`truncated`), an unfinished call is not completed but becomes `partial_tool_call`,
        and a call that counts only at the end of the output is text.
        """
        self._take_rest(as_flag("truncated", truncated))
        if self._fenced is not None:
            self._code.feed("\n")
            if not self._code.in_fence:
                self._release_fenced()
            else:
                self._read_fenced_again()
                self._take_rest(truncated)
        self._output.finish()
        return self._output.take()

    def _take_in(self, text: str) -> None:
        # What is consumed is cut off the buffer, which is cheap as long as the buffer is short.
        if self.ended:
            self._left_out = self._left_out or bool(text.strip())
            return
        for start in range(0, len(text), _CHUNK):
            self._buffer.append(text[start : start + _CHUNK])
            while not self.ended and self._advance(final=False, truncated=False):
                pass

    def _take_rest(self, truncated: bool) -> None:
        while not self.ended and self._advance(final=True, truncated=truncated):
            pass

    # Each step consumes some text; False when nothing more can be done without more text.

    def _advance(self, *, final: bool, truncated: bool) -> bool:
        if self._reader is not None:
            return self._read_calls(self._reader, final, truncated)
        if self._draft is not None:
            return self._look_behind(self._draft, final, truncated)
        return self._scan(final, truncated)

    # -- text ------------------------------------------------------------------------------------------------------

    def _scan(self, final: bool, truncated: bool) -> bool:
        """Pass text on up to the next mark."""
        text = self._buffer.text
        position, end = 0, len(text)
        if self._fenced is not None and (line := text.find("\n")) >= 0:
            end = line + 1
        while (found := text.find("<", position, end)) >= 0:
            match = _MARKS.match(text, found)
            if match is not None:
                self._pass(found)
                self._at_mark(match[0])
                return True
            if not final and self._may_be_mark(text[found : found + _LONGEST_MARK + 1]):
                self._pass(found)
                return False
            position = found + 1
        if truncated and self._cut_off_mark():
            return False
        self._pass(end)
        if self._fenced is not None and text[end - 1 : end] == "\n" and not self._code.in_fence:
            self._release_fenced()
        return bool(self._buffer.text)

    def _cut_off_mark(self) -> bool:
        """Take the beginning of a tag where a call may begin, which the end of the output cut off, for no text."""
        found = self._buffer.text.rfind("<")
        rest = self._buffer.text[found:]
        if self._tools is None or self._reasoning or found < 0 or not self._may_be_mark(rest):
            return False
        self._pass(found)
        if self._output.after_call and rest.startswith("</"):
            self._consume(len(rest))
        elif not rest.startswith("</") and self._code.begins_line and not self._in_code():
            self.partial_tool_call = self._consume(len(rest))
        else:
            self._pass(len(rest))
        return True

    def _in_code(self) -> bool:
        return not self._reasoning and (self._code.in_fence or self._code.in_inline_code)

    def _may_be_mark(self, text: str) -> bool:
        if any(len(text) < len(tag) and tag.startswith(text) for tag in _THINK_TAGS):
            return True
        return self._tools is not None and is_partial_tag(text) and not text.startswith("<parameter=")

    def _pass(self, length: int) -> None:
        """Characters of the buffer are text."""
        if not length:
            return
        start, text = self._start, self._consume(length)
        self._code.feed(text)
        if self._fenced is not None:
            self._fenced[1].append(text)
        else:
            self._output.text(text, start)

    def _consume(self, length: int) -> str:
        self._start += length
        self._think_searched = max(0, self._think_searched - length)
        return self._buffer.drop(length)

    def _at_mark(self, mark: str) -> None:
        """The buffer begins with a mark."""
        if mark in _THINK_TAGS:
            self._at_think_tag(mark)
        elif self._tools is None or not self._begin_call(mark):
            self._pass(len(mark))

    def _at_think_tag(self, mark: str) -> None:
        begun = bool(self._output.text_came or self._calls)
        if self._in_code() or (mark == OPEN_THINK and begun) or (mark == CLOSE_THINK and self._thinks_in_content):
            self._thinks_in_content = mark == OPEN_THINK if not self._in_code() else self._thinks_in_content
            self._pass(len(mark))
            return
        self._consume(len(mark))
        self._reasoning = mark == OPEN_THINK
        self._output.begin_block(reasoning=self._reasoning)
        if not self._output.text_came:
            self._code = MarkdownCode()

    # -- calls -----------------------------------------------------------------------------------------------------

    def _begin_call(self, mark: str, *, behind_draft: str | None = None) -> bool:
        """Begin to read a call if one may begin with the mark at the beginning of the buffer.

        `behind_draft` is the white space between it and a draft, if it follows one.
        """
        tools = self._tools
        if tools is None:
            return False
        if mark in _CLOSING:
            if self._output.after_call:  # written twice
                self._consume(len(mark))
            return self._output.after_call
        begins_line = self._code.begins_line if behind_draft is None else "\n" in behind_draft
        if self._in_code() and self._code.in_fence and not self._fence_stays_open:
            if mark == OPEN_CALL and self._fenced is None and begins_line:
                self._fenced = (self._start, [])
            return False
        in_place = begins_line and not self._in_code()
        if mark != OPEN_CALL:
            tag = tag_at(mark, 0, len(mark))
            if tag is None or tag.name not in tools or not in_place:
                return False
        in_place = in_place and not self._fence_stays_open and not self._thinks_in_content
        reads_draft, strict = self._reasoning or not in_place, not self._reasoning and not in_place
        if (
            behind_draft is None
            and self._no_calls is not None
            and self._no_calls.hold(self._start, reads_draft, strict)
        ):
            return False
        self._reads_draft, self._reads_strictly = reads_draft, strict
        self._reader = CallReader(
            tools,
            self._buffer,
            only_known=reads_draft,
            strict=strict,
            single=not self._parallel_calls,
        )
        self._think_searched = 0
        return True

    def _read_calls(self, reader: CallReader, final: bool, truncated: bool) -> bool:
        end, closed = self._end_of_calls(final)
        found = reader.read(end, final=final or closed, truncated=truncated and not closed)
        if found is None:
            if not self._reads_draft and self._draft is None:
                self._write_pieces(reader)
            return False
        self._reader = None
        if found.last_open and not found.calls and not found.partial:
            self._no_calls = _NoCalls(self._start + found.last_open, self._reads_draft, self._reads_strictly)
        if self._reads_draft:
            self._keep_draft(found)
        elif found.calls or found.partial:
            self._make_draft()
            self._start_of_call()
            for at, call in enumerate(found.calls):
                self._make(call, self._writers[at] if at < len(self._writers) else CallWriter())
            self.partial_tool_call = found.partial
            self._consume(found.end)
        else:
            self._drop_draft()
            self._pass_mark()
        self._writers = []
        return bool(self._buffer.text) or self._draft is not None

    def _end_of_calls(self, final: bool) -> tuple[int, bool]:
        """Where the text for a reader ends: </think> ends every call in a thinking block; and whether it is there."""
        text = self._buffer.text
        if not self._reasoning:
            return len(text), False
        found = text.find(CLOSE_THINK, self._think_searched)
        if found >= 0:
            return found, True
        end = len(text)
        if not final:
            partial = text.rfind("<", max(0, end - len(CLOSE_THINK) + 1))
            if partial >= 0 and CLOSE_THINK.startswith(text[partial:]):
                end = partial
        self._think_searched = end
        return end, False

    def _write_pieces(self, reader: CallReader) -> None:
        if not self._call_deltas:
            return
        for at, call in enumerate(reader.progress()):
            if at and not self._parallel_calls:
                return
            if at == len(self._writers):
                self._writers.append(CallWriter())
            for piece in self._writers[at].advance(call):
                self._start_of_call()
                self._output.piece(piece)

    def _start_of_call(self) -> None:
        self._output.begin_call()
        self._code.begin_line()

    def _make(self, call: ReadCall, writer: CallWriter) -> None:
        if self.ended:
            self._left_out = True
            return
        made = ToolCall(call.name, call.arguments, writer.id)
        self._calls.append(made)
        if self._call_deltas:
            for piece in writer.finish(call.name, call.arguments):
                self._output.piece(piece)
        self._output.piece(ToolCallEvent(made))
        self.ended = not self._parallel_calls

    def _pass_mark(self) -> None:
        """The tag at the beginning of the buffer is text."""
        match = _MARKS.match(self._buffer.text)
        self._pass(1 if match is None else match.end())

    # -- calls that count only at the end of the output --------------------------------------------------------------

    def _keep_draft(self, found: ReadCalls) -> None:
        """Take the complete calls at the end of what was read; what stands before them is text."""
        calls = found.calls
        first = len(calls)
        while first and calls[first - 1].closed:
            first -= 1
        kept = [] if found.partial else calls[first:]
        if first or not kept:
            self._drop_draft()
        if not kept:
            if calls or found.partial:
                self._pass(found.end)
            else:
                self._pass_mark()
            return
        start = kept[0].start if first else 0
        self._pass(start)
        place, text = self._start, self._consume(found.end - start)
        if self._draft is None:
            self._draft = _Draft(kept, text, place, self._reasoning)
        else:
            self._draft.calls += kept
            self._draft.text += text

    def _look_behind(self, draft: _Draft, final: bool, truncated: bool) -> bool:
        """Decide on a draft by what follows it."""
        text = self._buffer.text
        at = len(text) - len(text.lstrip())
        if at == len(text):
            if final and truncated:
                self._drop_draft()
                return bool(text)
            if final:
                self._consume(at)
                self._make_draft()
            return False
        match = _MARKS.match(text, at)
        if match is None:
            if not final and self._may_be_mark(text[at : at + _LONGEST_MARK + 1]):
                return False
            self._drop_draft()
        elif match[0] == CLOSE_THINK and self._reasoning:
            self._consume(match.end())
            self._reasoning = False
            self._output.hold_block()
        elif draft.in_thinking and not self._reasoning:
            self._drop_draft()
        else:
            self._go_on_behind(draft, at, match[0])
        return True

    def _go_on_behind(self, draft: _Draft, at: int, mark: str) -> None:
        """Another call may follow a draft."""
        if mark in _CLOSING:
            draft.text += self._consume(at + len(mark))
            return
        space = self._consume(at)
        draft.text += space
        if not self._begin_call(mark, behind_draft=space):
            self._drop_draft()

    def _make_draft(self) -> None:
        draft, self._draft = self._draft, None
        if draft is not None:
            self._start_of_call()
            for call in draft.calls:
                self._make(call, CallWriter())

    def _drop_draft(self) -> None:
        """The draft's text is text."""
        draft, self._draft = self._draft, None
        if draft is None:
            return
        if draft.in_thinking and not self._reasoning:
            self._output.late_reasoning(draft.text, draft.start)
            self._code = MarkdownCode()
        else:
            self._code.feed(draft.text)
            self._output.text(draft.text, draft.start)

    # -- fences ----------------------------------------------------------------------------------------------------

    def _release_fenced(self) -> None:
        """The fence is closed: what it holds is text."""
        if self._fenced is not None:
            start, texts = self._fenced
            self._fenced = None
            self._output.text("".join(texts), start)

    def _read_fenced_again(self) -> None:
        """The output is over and the fence was not closed: what looks like a call in it may be one."""
        if self._fenced is not None:
            self._start, texts = self._fenced
            self._fenced = None
            self._code.leave_fence()
            self._fence_stays_open = True
            self._take_in("".join(texts))
