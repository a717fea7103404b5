"""Splits a model's output into reasoning, content and tool calls while the text arrives."""

from __future__ import annotations

import re
from typing import Literal

from lily.chat.argument_values import ToolSchemas
from lily.chat.call_drafts import Draft, NoCalls
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
from lily.chat.think_tags import CLOSE_THINK, OPEN_THINK, end_of_thinking, line_ends, thinking_is_open
from lily.checks.arguments import as_flag, check_text
from lily.checks.quoting import quoted
from lily.errors import InvalidArgumentError

__all__ = ["OutputParser", "ParsedPiece", "thinking_is_open"]

_THINK_TAGS = (OPEN_THINK, CLOSE_THINK)
_MARKS = re.compile(r"</?think>|</?tool_call>|</function>|</parameter>|<function=[^<>\n]{1,200}>")
_CLOSING = (CLOSE_CALL, CLOSE_FUNCTION, CLOSE_PARAMETER)
_LONGEST_MARK = 256  # characters
_CHUNK = 4096  # characters


class OutputParser:
    """One answer's parser; the pieces do not depend on how the text was split.

    Thinking ends with the first ``</think>``, as in templates. Removed from the text, with the newlines after them, are
    ``<think>`` where it opens the answer, the tag that closes it, and another ``</think>`` alone on its line before all
    content or after a call. Elsewhere in the content these tags are text.

    A call begins where the chat template begins one: with ``<tool_call>``, followed by ``<function=NAME>`` or by JSON,
    or with ``<function=NAME>`` of a known tool at the beginning of a line. Elsewhere these tags are text, and so is a
    call in Markdown code. Some calls may turn out to be mere text: one in a thinking block, one after other text on its
    line or in a list item, one after an unclosed fence or backtick, and one of an unknown tool. Such a call counts only
    if nothing but other calls follows it in the output; the first three kinds must also be complete and name a known
    tool. Until that is decided none of its text is returned; if it does not count, all of it is. White space around
    calls is not content.
    """

    def __init__(
        self,
        *,
        reasoning: bool,
        tools: ToolSchemas | None = None,
        call_deltas: bool = False,
        parallel_calls: bool = True,
        begun: str = "",
    ) -> None:
        """
        Parameters
        ----------
        reasoning
            Whether the output begins inside a thinking block; see `thinking_is_open`.
        tools
            The request's tools; without any, calls are text.
        call_deltas
            Also return pieces of calls while they are written.
        parallel_calls
            False: the output ends with the first call.
        begun
            What the output continues. It is read as if the model had written it, and its text is not returned.
        """
        if not isinstance(tools, (ToolSchemas, type(None))):
            raise InvalidArgumentError(f"tools must be lily.chat.ToolSchemas, not {quoted(tools)}")
        check_text("begun", begun)
        self._tools = tools if tools is not None and tools.names else None
        self._reasoning = reasoning = as_flag("reasoning", reasoning)
        self._call_deltas = as_flag("call_deltas", call_deltas)
        self._parallel_calls = as_flag("parallel_calls", parallel_calls)
        self._buffer = TextBuffer()  # not yet consumed
        self._start = -len(begun)  # characters of the output before it
        self._output = OutputText(reasoning=reasoning, calls=self._tools is not None)
        self._code = MarkdownCode()
        self._fenced: tuple[int, list[str]] | None = None  # text after a possible call in a fence, and its place
        self._fence_stays_open = False
        self._thinks_in_content = False  # a thinking block that opened after other text is text, including its calls
        self._reader: CallReader | None = None
        self._no_calls: NoCalls | None = None
        self._reads_draft = self._reads_strictly = False
        self._draft: Draft | None = None
        self._think_searched = 0  # characters of the buffer that contain no beginning of </think>
        self._writers: list[CallWriter] = []  # of the calls that the reader has begun
        self._calls: list[ToolCall] = []
        self._left_out = False  # a call after the one that is allowed
        self.ended = False  #: nothing more is taken: the one allowed call is complete
        self.partial_tool_call = ""  #: text of a call that the end of the output cut off
        self._take_in(begun)

    @property
    def state(self) -> Literal["reasoning", "content", "call"]:
        """Where the next text belongs."""
        if self._reader is not None:
            return "call"
        return "reasoning" if self._reasoning else "content"

    @property
    def in_reasoning(self) -> bool:
        """Whether the thinking block is open, perhaps with a call inside."""
        return self._reasoning

    @property
    def is_whole(self) -> bool:
        """Whether nothing was dropped after the call that ended the output."""
        return not self._left_out and not self._buffer.text.strip()

    @property
    def begun_texts(self) -> tuple[str, str]:
        """Content and reasoning of the text that the output continues, without calls and text held back."""
        return self._output.begun_content, self._output.begun_reasoning

    @property
    def call_count(self) -> int:
        """Number of calls so far."""
        return len(self._calls)

    def feed(self, text: str) -> list[ParsedPiece]:
        """Take more text and return what it completes."""
        if not isinstance(text, str):
            raise InvalidArgumentError(f"text must be a str, not {type(text).__name__}")
        if text and self._is_plain(text):
            self._start += len(text)
            self._code.feed(text)
            self._output.text(text, self._start - len(text))
        else:
            self._take_in(text)
        return self._output.take()

    def _is_plain(self, text: str) -> bool:
        """Whether nothing in the text, nor before it, can be a mark: most pieces are so, and cost less."""
        waits = self._reader is not None or self._draft is not None or self._fenced is not None or self._buffer.text
        return not waits and not self.ended and "<" not in text and len(text) <= _CHUNK

    def finish(self, *, truncated: bool = False) -> list[ParsedPiece]:
        """Return what was held back, with unfinished calls completed.

        If the output was cut off (`truncated`), an unfinished call becomes `partial_tool_call` instead, and a call that
        counts only at the end of the output is text.
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
        # Cutting off consumed text is cheap while the buffer is short.
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

    def _advance(self, *, final: bool, truncated: bool) -> bool:
        if self._reader is not None:
            return self._read_calls(self._reader, final, truncated)
        if self._draft is not None:
            return self._look_behind(self._draft, final, truncated)
        return self._scan(final, truncated)

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
                return self._at_mark(match[0], final)
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
        """Drop the beginning of a call's tag that the end of the output cut off."""
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

    def _is_known(self, name: str) -> bool:
        return name in (self._tools or ())

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

    def _at_mark(self, mark: str, final: bool) -> bool:
        """The buffer begins with a mark; False to wait for what follows it."""
        if mark in _THINK_TAGS:
            return self._at_think_tag(mark, final)
        if self._tools is None or not self._begin_call(mark):
            self._pass(len(mark))
        return True

    def _at_think_tag(self, mark: str, final: bool) -> bool:
        begun, in_code = bool(self._output.text_came or self._calls), self._in_code()
        if mark == OPEN_THINK:
            is_tag = not begun and not in_code
            self._thinks_in_content = self._thinks_in_content or not (is_tag or in_code or self._reasoning)
        elif self._reasoning:
            is_tag = True
        elif in_code or self._thinks_in_content or not self._code.begins_line:
            is_tag = False
            self._thinks_in_content = self._thinks_in_content and in_code
        else:  # again after the block or after a call, alone on its line
            ends = line_ends(self._buffer.text, len(mark), final=final)
            if ends is None:
                return False
            is_tag = ends and (not begun or self._output.after_call)
        if not is_tag:
            self._pass(len(mark))
            return True
        self._consume(len(mark))
        if self._reasoning or not begun:
            self._reasoning = mark == OPEN_THINK
            self._output.begin_block(reasoning=self._reasoning)
            self._code = self._code if self._output.text_came else MarkdownCode()
        return True

    def _begin_call(self, mark: str, *, behind_draft: str | None = None) -> bool:
        """Begin to read a call if one may begin with the tag at the start of the buffer.

        `behind_draft` is the white space between it and a preceding draft, if there is one.
        """
        if (tools := self._tools) is None:
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
        in_place = begins_line and not self._in_code() and not self._code.in_list
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
            self._no_calls = NoCalls(self._start + found.last_open, self._reads_draft, self._reads_strictly)
        if self._reads_draft:
            self._keep_draft(found)
        elif found.calls or found.partial:
            self._take_calls(found)
        else:
            self._drop_draft()
            self._pass_mark()
        self._writers = []
        return bool(self._buffer.text) or self._draft is not None

    def _take_calls(self, found: ReadCalls) -> None:
        """Make the calls; those at the end that name no tool may be mere text."""
        calls, count = found.calls, len(found.calls)
        while count and not (found.partial or self._is_known(calls[count - 1].name)):
            count -= 1
        if count or found.partial:
            self._make_draft()
            self._start_of_call()
        for at, call in enumerate(calls[:count]):
            self._make(call, self._writers[at] if at < len(self._writers) else CallWriter())
        self.partial_tool_call = found.partial
        if count == len(calls):
            self._consume(found.end)
            return
        start = len(self._consume(calls[count].start)) if count else 0
        self._add_draft(calls[count:], found.end - start)

    def _end_of_calls(self, final: bool) -> tuple[int, bool]:
        """Where a reader's text ends (</think> ends every call in a thinking block); and whether that tag is there."""
        text = self._buffer.text
        if not self._reasoning:
            return len(text), False
        end, closed = end_of_thinking(text, self._think_searched, final=final)
        if not closed:
            self._think_searched = end
        return end, closed

    def _write_pieces(self, reader: CallReader) -> None:
        if not self._call_deltas:
            return
        for at, call in enumerate(reader.progress()):
            if at == len(self._writers):
                if (at and not self._parallel_calls) or not self._is_known(call.name):
                    return
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

    def _keep_draft(self, found: ReadCalls) -> None:
        """Take the complete calls at the end of what was read; everything before them is text."""
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
        self._add_draft(kept, found.end - start)

    def _add_draft(self, calls: list[ReadCall], length: int) -> None:
        """Calls in the next characters of the buffer may turn out to be mere text."""
        place, text = self._start, self._consume(length)
        if self._draft is None:
            self._draft = Draft(calls, text, place, self._reasoning)
        else:
            self._draft.calls += calls
            self._draft.text += text

    def _look_behind(self, draft: Draft, final: bool, truncated: bool) -> bool:
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

    def _go_on_behind(self, draft: Draft, at: int, mark: str) -> None:
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

    def _release_fenced(self) -> None:
        """The fence is closed: its contents are text."""
        if self._fenced is not None:
            start, texts = self._fenced
            self._fenced = None
            self._output.text("".join(texts), start)

    def _read_fenced_again(self) -> None:
        """The output is over and the fence was never closed: what looks like a call in it may be one."""
        if self._fenced is not None:
            (self._start, texts), self._fenced = self._fenced, None
            self._code.leave_fence()
            self._fence_stays_open = True
            self._take_in("".join(texts))
