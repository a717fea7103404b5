"""Splits a model's output into reasoning, content and tool calls, as the text arrives."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal

from lily.chat.argument_values import ToolSchemas
from lily.chat.call_reader import CallReader, is_partial_tag
from lily.chat.call_writer import CallWriter
from lily.chat.events import ContentDelta, ReasoningDelta, ToolCall, ToolCallDelta, ToolCallEvent

__all__ = ["OutputParser", "ParsedPiece", "thinking_is_open"]

ParsedPiece = ReasoningDelta | ContentDelta | ToolCallDelta | ToolCallEvent

OPEN_THINK, CLOSE_THINK = "<think>", "</think>"
_THINK_TAGS = (OPEN_THINK, CLOSE_THINK)
_MARKS = re.compile(r"</?think>|</?tool_call>|</function>|</parameter>|<function=([^<>\n]{1,200})>")


def thinking_is_open(prompt: str) -> bool:
    """Whether the output that follows a rendered prompt begins inside a thinking block.

    The opening tag is part of the prompt, so that it never shows up in the output: the end of the prompt tells.
    """
    return prompt.rstrip().endswith(OPEN_THINK)


class OutputParser:
    """One answer's parser; the pieces do not depend on how the text was split.

    No part of a tag is ever content: ``<think>`` where it opens the answer, ``</think>`` with the newlines after it,
    and, if there are tools, ``<tool_call>`` elements and bare ``<function=NAME>`` elements of known tools. A call
    inside a thinking block counts as a call when it names a known tool. White space around calls is not content.
    """

    def __init__(
        self, *, reasoning: bool, tools: ToolSchemas | None = None, call_deltas: bool = False, begun: bool = False
    ) -> None:
        """
        Parameters
        ----------
        reasoning
            Whether the output begins inside a thinking block; see `thinking_is_open`.
        tools
            The request's tools; None leaves the tags of calls in the text.
        call_deltas
            Return pieces of calls as they are written, too.
        begun
            The output goes on with a text: white space at its beginning counts, and no thinking opens.
        """
        self._tools = tools
        self._reasoning = reasoning
        self._text = ""  # not yet consumed
        self._pieces: list[ParsedPiece] = []
        self._reader: CallReader | None = None
        self._held = ""  # white space that is text only if text follows
        self._skipping = "" if begun else "\r\n"  # characters left out before the next text
        self._text_came = begun  # in the current block
        self._after_call = False
        self._early_calls: list[ToolCall] = []  # made inside the thinking block
        self._call_count = 0
        self._call_deltas = call_deltas
        self._writers: list[CallWriter] = []  # of the calls that the reader has begun
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
    def call_count(self) -> int:
        """Number of calls so far."""
        return self._call_count

    def feed(self, text: str) -> list[ParsedPiece]:
        """Take more text and return what it completes."""
        self._text += text
        while self._advance(final=False, truncated=False):
            pass
        return self._take()

    def finish(self, *, truncated: bool = False) -> list[ParsedPiece]:
        """Return what was held back, with unfinished calls completed.

        Parameters
        ----------
        truncated
            The output was cut off: an unfinished call is not completed but becomes `partial_tool_call`.
        """
        while self._advance(final=True, truncated=truncated):
            pass
        if self._held and not self._call_count:
            self._append(self._held)
        self._held = ""
        return self._take()

    # Consumes some text; False when nothing more can be done without more text.

    def _advance(self, *, final: bool, truncated: bool) -> bool:
        if self._reader is not None:
            return self._read_calls(self._reader, final, truncated)
        position = 0
        while (found := self._text.find("<", position)) >= 0:
            match = _MARKS.match(self._text, found)
            if match is not None and self._is_mark(match, found):
                self._emit(self._text[:found])
                self._text = self._text[found:]
                self._pass(match)
                return True
            if match is None and not final and self._is_partial(self._text[found : found + 256]):
                break
            position = found + 1
        end = found if found >= 0 else len(self._text)
        if truncated and self._text.rfind("<") > -1 and self._is_partial(self._text[self._text.rfind("<") :]):
            end = self._text.rfind("<")
        rest = self._text[end:]
        self._emit(self._text[:end])
        self._text = "" if final else rest
        return False

    def _is_mark(self, match: re.Match[str], found: int) -> bool:
        tag = match[0]
        if tag == CLOSE_THINK:
            return True
        if tag == OPEN_THINK:  # in the prompt usually; some answers repeat or begin with it
            return not self._text_came and not self._text[:found].strip() and not self._call_count
        if self._tools is None:
            return False
        if tag == "<tool_call>":
            return True
        if self._reasoning:
            return False
        if match[1] is not None:
            return match[1].strip().strip("\"'") in self._tools
        return tag == "</tool_call>" or (self._after_call and not self._text[:found].strip())

    def _is_partial(self, text: str) -> bool:
        if any(tag.startswith(text) for tag in _THINK_TAGS):
            return True
        return self._tools is not None and is_partial_tag(text) and not text.startswith("<parameter=")

    def _pass(self, match: re.Match[str]) -> None:
        """Consume the tag at the beginning of the text."""
        tag = match[0]
        if self._tools is not None and (tag == "<tool_call>" or match[1] is not None):
            self._reader = CallReader(self._tools, only_known=self._reasoning)
            return
        self._text = self._text[len(tag) :]
        if tag in _THINK_TAGS:
            self._skipping = "\r\n"
            reasoning = tag == OPEN_THINK
            if reasoning != self._reasoning:
                self._reasoning = reasoning
                self._held = ""
                self._text_came = False

    def _read_calls(self, reader: CallReader, final: bool, truncated: bool) -> bool:
        found = reader.read(self._text, final=final, truncated=truncated)
        if found is None:
            self._write_pieces(reader)
            return False
        self._reader = None
        self.partial_tool_call = found.partial
        if found.calls or found.partial:
            self._begin_call()
            for at, (name, arguments) in enumerate(found.calls):
                self._emit_call(name, arguments, self._writers[at] if at < len(self._writers) else CallWriter())
            self._text = self._text[found.end :]
        elif self._reasoning:  # it only talks of calls
            tag = "<tool_call>"
            self._emit(tag)
            self._text = self._text[len(tag) :]
        else:
            self._text = self._text[found.end :]
        self._writers = []
        return bool(self._text)

    def _write_pieces(self, reader: CallReader) -> None:
        if not self._call_deltas or self._early_calls:  # a call that was drafted before may turn out not to count
            return
        for at, call in enumerate(reader.progress()):
            if at == len(self._writers):
                self._writers.append(CallWriter())
            self._pieces += self._writers[at].advance(call)

    def _begin_call(self) -> None:
        self._after_call = True
        self._skipping = " \t\r\n"
        if not self._text_came:
            self._held = ""

    def _emit_call(self, name: str, arguments: dict[str, Any], writer: CallWriter) -> None:
        call = ToolCall(name, arguments, writer.id)
        if self._reasoning:
            self._early_calls.append(call)
        else:
            # Some answers draft a call while thinking and then make it: that is one call.
            for early in self._early_calls:
                if (early.name, early.arguments) == (call.name, call.arguments):
                    self._early_calls.remove(early)
                    return
        self._call_count += 1
        if self._call_deltas:
            self._pieces += writer.finish(name, arguments)
        self._pieces.append(ToolCallEvent(call))

    def _emit(self, text: str) -> None:
        if self._skipping:
            text = text.lstrip(self._skipping)
        if not text:
            return
        self._skipping = ""
        text, self._held = self._held + text, ""
        if self._reasoning or self._tools is not None or not self._text_came:
            kept = text.rstrip()
            text, self._held = kept, text[len(kept) :]
        if text:
            self._append(text)

    def _append(self, text: str) -> None:
        self._text_came = True
        self._after_call = False
        self._pieces.append(ReasoningDelta(text) if self._reasoning else ContentDelta(text))

    def _take(self) -> list[ParsedPiece]:
        pieces, self._pieces = list(_merged(self._pieces)), []
        return pieces


def _merged(pieces: Iterable[ParsedPiece]) -> Iterable[ParsedPiece]:
    """Neighbours of the same kind as one piece."""
    last: ParsedPiece | None = None
    for piece in pieces:
        if isinstance(piece, ContentDelta) and isinstance(last, ContentDelta):
            last = ContentDelta(last.text + piece.text)
        elif isinstance(piece, ReasoningDelta) and isinstance(last, ReasoningDelta):
            last = ReasoningDelta(last.text + piece.text)
        else:
            if last is not None:
                yield last
            last = piece
    if last is not None:
        yield last
