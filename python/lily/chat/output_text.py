"""Collects what a parser finds in an output: calls, and text with its place."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from lily.chat.events import ContentDelta, ReasoningDelta, ToolCallDelta, ToolCallEvent

__all__ = ["OutputText", "ParsedPiece"]

ParsedPiece = ReasoningDelta | ContentDelta | ToolCallDelta | ToolCallEvent

_LINE_ENDS = "\r\n"
_SPACE = " \t\r\n"


class OutputText:
    """White space around calls and at the edges of the thinking block is dropped; all other text is kept.

    Attributes
    ----------
    text_came : bool
        Whether the current block has text other than white space.
    after_call : bool
        Whether nothing but white space has come since a call.
    begun_content, begun_reasoning : str
        Text at negative places: the output continues it, and it is not returned.
    """

    def __init__(self, *, reasoning: bool, calls: bool) -> None:
        """`calls`: whether there may be calls."""
        self.text_came = False
        self.after_call = False
        self.begun_content = self.begun_reasoning = ""
        self._reasoning = reasoning
        self._may_call = calls
        self._pieces: list[ParsedPiece] = []
        self._held: list[tuple[str, int]] = []  # white space that is text only if text follows, and its places
        self._late: list[tuple[str, int]] = []  # the same for a thinking block that may continue
        self._skipped = _LINE_ENDS if reasoning else ""  # characters left out before the next text

    def text(self, text: str, start: int) -> None:
        """Add text of the current block; `start` characters of the output stand before it."""
        if self._skipped:
            kept = text.lstrip(self._skipped)
            start += len(text) - len(kept)
            text = kept
        if not text:
            return
        self._skipped = ""
        holds = self._reasoning or self._may_call or not self.text_came
        kept = text.rstrip() if holds else text
        if kept:
            self._release()
            self._append(kept, start, reasoning=self._reasoning)
            self.text_came, self.after_call = True, False
        if len(kept) < len(text):
            self._held.append((text[len(kept) :], start + len(kept)))

    def piece(self, piece: ToolCallDelta | ToolCallEvent) -> None:
        """Add a call or a piece of one."""
        self._pieces.append(piece)

    def begin_call(self) -> None:
        """A call follows."""
        self.after_call = True
        self._skipped = _SPACE
        if not self.text_came:
            self._held = []

    def begin_block(self, *, reasoning: bool) -> None:
        """A tag of the thinking block was left out here."""
        if reasoning != self._reasoning or not self.text_came:
            self._held = []
        if reasoning != self._reasoning:
            self._reasoning = reasoning
            self.text_came = False
        self._skipped = _LINE_ENDS

    def hold_block(self) -> None:
        """Like `begin_block` for content, but more text of the thinking may follow; see `late_reasoning`."""
        self._late = self._held
        self.begin_block(reasoning=False)

    def late_reasoning(self, text: str, start: int) -> None:
        """Add text to the thinking block that was closed before."""
        for held, place in self._late:
            self._append(held, place, reasoning=True)
        self._late = []
        self._append(text, start, reasoning=True)

    def finish(self) -> None:
        """The output is over."""
        if not self.after_call:
            self._release()
        self._held = []

    def take(self) -> list[ParsedPiece]:
        """What has arrived since the last call."""
        pieces, self._pieces = self._pieces, []
        return list(_merged(pieces)) if len(pieces) > 1 else pieces

    def _release(self) -> None:
        for text, start in self._held:
            self._append(text, start, reasoning=self._reasoning)
        self._held = []

    def _append(self, text: str, start: int, *, reasoning: bool) -> None:
        if start < 0:
            begun, text, start = text[:-start], text[-start:], 0
            if reasoning:
                self.begun_reasoning += begun
            else:
                self.begun_content += begun
            if not text:
                return
        self._pieces.append(ReasoningDelta(text, start=start) if reasoning else ContentDelta(text, start=start))


def _merged(pieces: Iterable[ParsedPiece]) -> Iterable[ParsedPiece]:
    """Merges pieces of the same kind that are adjacent here and in the output."""
    last: ContentDelta | ReasoningDelta | None = None
    texts: list[str] = []
    end = 0
    for piece in pieces:
        goes_on = isinstance(piece, (ContentDelta, ReasoningDelta)) and type(piece) is type(last) and piece.start == end
        if last is not None and not goes_on:
            yield _joined(last, texts)
            last = None
        if not isinstance(piece, (ContentDelta, ReasoningDelta)):
            yield piece
            continue
        if last is None:
            last, texts = piece, []
        texts.append(piece.text)
        end = piece.start + len(piece.text)
    if last is not None:
        yield _joined(last, texts)


def _joined(first: ContentDelta | ReasoningDelta, texts: list[str]) -> ContentDelta | ReasoningDelta:
    return first if len(texts) == 1 else replace(first, text="".join(texts))
