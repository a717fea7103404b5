"""The output of a generation as events: each token becomes text, which ends at stop strings or when cancelled."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from lily.chat.described_tokens import described_token
from lily.chat.events import ContentDelta, FinishReason, ReasoningDelta, TokenLogprob, ToolCallEvent
from lily.chat.output_text import ParsedPiece
from lily.chat.stop_strings import StopStrings
from lily.chat.token_spans import TokenSpans
from lily.errors import CancelledError
from lily.session.generation import GeneratedToken, Generation
from lily.text import Tokenizer

__all__ = ["OutputControl", "OutputReader", "OutputStream", "PlainReader"]


class OutputReader(Protocol):
    """Makes pieces of an output's text, such as `OutputParser`."""

    @property
    def ended(self) -> bool:
        """Whether the output has said all, so that the generation need not go on."""

    def feed(self, text: str) -> Sequence[ParsedPiece]:
        """The pieces that the next text completes."""

    def finish(self, *, truncated: bool = False) -> Sequence[ParsedPiece]:
        """The last pieces; `truncated` unless the model ended the output."""


class OutputControl(Protocol):
    """Hears of each token before its text is read, and puts tokens in, such as `TurnControl`."""

    def accept(self, token: int, *, forced: bool = False) -> None:
        """Take a token that is part of the output now."""

    def forced(self) -> list[int]:
        """The tokens to put in now, perhaps none."""


class PlainReader:
    """All text is content."""

    ended = False

    def __init__(self) -> None:
        self._length = 0  # characters so far

    def feed(self, text: str) -> list[ParsedPiece]:
        """The text as one piece."""
        if not text:
            return []
        start, self._length = self._length, self._length + len(text)
        return [ContentDelta(text, start=start)]

    def finish(self, *, truncated: bool = False) -> list[ParsedPiece]:
        """Nothing: no text was held back."""
        del truncated
        return []


class OutputStream:
    """Generates tokens and turns them into events.

    Attributes
    ----------
    finish_reason : str, optional
        None while the generation runs.
    ended_by_model : bool
        Whether a stop token ended the output.
    generation_seconds : float
        From the beginning to the latest token.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        generation: Generation,
        reader: OutputReader,
        stop: Sequence[str],
        is_cancelled: Callable[[], bool],
        *,
        control: OutputControl | None = None,
        logprobs: bool = False,
        spell_control_tokens: bool = False,
    ) -> None:
        self.finish_reason: FinishReason | None = None
        self.ended_by_model = False
        self.generation_seconds = 0.0
        self._tokenizer = tokenizer
        self._generation = generation
        self._reader = reader
        self._stop = StopStrings(stop)
        self._is_cancelled = is_cancelled
        self._control = control
        self._spell_control_tokens = spell_control_tokens
        self._detokenizer = tokenizer.detokenizer()
        self._spans = TokenSpans() if logprobs else None
        self._undelivered: deque[tuple[int, int]] = deque()  # places and lengths of the content in the stop strings
        self._has_calls = False
        self._began = time.perf_counter()

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the output."""
        return self._stop.matched

    def events(self) -> Iterator[ParsedPiece]:
        """Generate to the end."""
        try:
            yield from self._generate()
        except CancelledError:
            self.finish_reason = "cancelled"
        if self.finish_reason is None:
            self.ended_by_model = self._generation.finish_reason == "stop"
            self.finish_reason = "stop" if self.ended_by_model else "length"
        truncated = not self.ended_by_model
        rest = self._detokenizer.finish()
        if self._spans is not None:
            self._spans.add_text(rest)
        yield from self._deliver(self._reader.feed(rest))
        if self._stop.matched is None:
            yield from self._deliver(self._reader.finish(truncated=truncated))
        if self._stop.matched is None:
            yield from self._content(self._stop.finish())
        elif self.finish_reason != "cancelled":
            self.finish_reason = "stop"
        if self.ended_by_model and self._has_calls and self._stop.matched is None:
            self.finish_reason = "tool_calls"

    def _generate(self) -> Iterator[ParsedPiece]:
        if self._reader.ended:  # by a call that the answer began with
            self.finish_reason = "tool_calls"
            return
        yield from self._put_in()
        for token in self._generation:
            if self._control is not None:
                self._control.accept(token.id)
            yield from self._feed(token)
            if self._stop.matched is not None:
                self.finish_reason = "stop"
                return
            if self._is_cancelled():
                self.finish_reason = "cancelled"
                return
            if self._reader.ended:
                self.finish_reason = "tool_calls"
                return
            yield from self._put_in()

    def _put_in(self) -> Iterator[ParsedPiece]:
        if self._control is None:
            return
        for token in self._generation.force(self._control.forced()):
            self._control.accept(token, forced=True)
            yield from self._feed(GeneratedToken(token, 0.0))  # certain to come

    def _feed(self, token: GeneratedToken) -> Iterator[ParsedPiece]:
        self.generation_seconds = time.perf_counter() - self._began
        if not self._spell_control_tokens and self._tokenizer.is_special(token.id):
            return
        text = self._detokenizer.feed(token.id)
        if self._spans is not None:
            self._spans.add(described_token(self._tokenizer, token), text)
        yield from self._deliver(self._reader.feed(text))

    def _deliver(self, pieces: Sequence[ParsedPiece]) -> Iterator[ParsedPiece]:
        for piece in pieces:
            if self._stop.matched is not None:
                return
            if isinstance(piece, ContentDelta):
                self._undelivered.append((piece.start, len(piece.text)))
                yield from self._content(self._stop.feed(piece.text))
            elif isinstance(piece, ReasoningDelta):
                yield replace(piece, logprobs=self._logprobs_of(piece.text, piece.start))
            else:
                # No stop string reaches across a call.
                yield from self._content(self._stop.finish())
                self._has_calls = self._has_calls or isinstance(piece, ToolCallEvent)
                yield piece

    def _content(self, text: str) -> Iterator[ContentDelta]:
        """Content that the stop strings have let through."""
        if not text:
            return
        begin = self._undelivered[0][0]
        logprobs: list[TokenLogprob] = []
        taken = 0
        while taken < len(text):
            start, length = self._undelivered.popleft()
            part = text[taken : taken + length]
            if len(part) < length:
                self._undelivered.appendleft((start + len(part), length - len(part)))
            logprobs += self._logprobs_of(part, start)
            taken += len(part)
        yield ContentDelta(text, tuple(logprobs), start=begin)

    def _logprobs_of(self, text: str, start: int) -> tuple[TokenLogprob, ...]:
        return () if self._spans is None else self._spans.take(text, start)
