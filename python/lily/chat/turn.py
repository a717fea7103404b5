"""One turn of the model: generates the answer to a session's prompt as typed events."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from lily.chat.control import TurnControl
from lily.chat.described_tokens import described_token
from lily.chat.events import (
    ContentDelta,
    Done,
    Event,
    FinishReason,
    ReasoningDelta,
    Timings,
    TokenLogprob,
    ToolCall,
    ToolCallEvent,
    Usage,
)
from lily.chat.output_parser import OutputParser, ParsedPiece
from lily.chat.stop_strings import StopStrings
from lily.chat.think_tags import CLOSE_THINK
from lily.chat.token_spans import TokenSpans
from lily.errors import CancelledError
from lily.generation import GeneratedToken, Generation
from lily.text import Tokenizer

__all__ = ["Turn"]

_ENDED_IN_THINKING = "the answer ended inside its thinking"


class Turn:
    """Feeds the tokens of a generation to the parser and keeps what came out.

    Attributes
    ----------
    content, reasoning : str
        The texts so far.
    tool_calls : list of ToolCall
        The calls so far.
    finish_reason : str, optional
        None while the generation runs.
    ended_by_model : bool
        Whether the model ended its turn.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        generation: Generation,
        parser: OutputParser,
        control: TurnControl,
        stop: Sequence[str],
        is_cancelled: Callable[[], bool],
        *,
        logprobs: bool = False,
    ) -> None:
        self.content = ""
        self.reasoning = ""
        self.tool_calls: list[ToolCall] = []
        self.finish_reason: FinishReason | None = None
        self.ended_by_model = False
        self._tokenizer = tokenizer
        self._generation = generation
        self._parser = parser
        self._control = control
        self._stop = StopStrings(stop)
        self._is_cancelled = is_cancelled
        self._detokenizer = tokenizer.detokenizer()
        self._spans = TokenSpans() if logprobs else None
        self._undelivered: deque[tuple[int, int]] = deque()  # places and lengths of the content in the stop strings
        self._began = time.perf_counter()
        self.generation_seconds = 0.0

    @property
    def message(self) -> dict[str, object]:
        """The assistant's message so far, with what it began with, in OpenAI's form with ``reasoning_content``."""
        begun_content, begun_reasoning = self._parser.begun_texts
        content, reasoning = begun_content + self.content, begun_reasoning + self.reasoning
        message: dict[str, object] = {"role": "assistant", "content": content}
        if reasoning or CLOSE_THINK in content:  # without reasoning, templates look for it in the content
            message["reasoning_content"] = reasoning
        if self.tool_calls:
            message["tool_calls"] = [call.as_message_part() for call in self.tool_calls]
        return message

    @property
    def is_whole(self) -> bool:
        """Whether the output is all that the model had to say, and all of it is in the message."""
        return self._parser.is_whole if self._parser.ended else self.ended_by_model

    @property
    def tokens(self) -> list[int]:
        """The output's ids, those put in included."""
        return self._generation.tokens

    def done(self, prompt_tokens: int, cached_tokens: int, prefill_seconds: float) -> Done:
        """The event that ends the turn."""
        if self.finish_reason is None:
            raise AssertionError("the turn has not ended")
        usage = Usage(prompt_tokens, len(self.tokens), cached_tokens, self._control.reasoning_tokens)
        return Done(
            self.finish_reason,
            usage,
            Timings(prefill_seconds, self.generation_seconds),
            stop_string=self._stop.matched,
            partial_tool_call=self._parser.partial_tool_call,
            warnings=self._warnings(),
        )

    def _warnings(self) -> tuple[str, ...]:
        in_thinking = self.ended_by_model and self._parser.in_reasoning and not self.tool_calls
        return (*self._control.warnings, *((_ENDED_IN_THINKING,) if in_thinking else ()))

    def events(self) -> Iterator[Event]:
        """Generate to the end; `done` is left to the caller."""
        try:
            yield from self._generate()
        except CancelledError:
            self.finish_reason = "cancelled"
        if self.finish_reason is None:
            self._finish_reason_of_generation()
        truncated = not self.ended_by_model
        rest = self._detokenizer.finish()
        if self._spans is not None:
            self._spans.add_text(rest)
        yield from self._deliver(self._parser.feed(rest))
        if self._stop.matched is None:
            yield from self._deliver(self._parser.finish(truncated=truncated))
        if self._stop.matched is None:
            yield from self._content(self._stop.finish())
        elif self.finish_reason != "cancelled":
            self.finish_reason = "stop"
        if self.ended_by_model and self.tool_calls and self._stop.matched is None:
            self.finish_reason = "tool_calls"

    def whole(self, prompt_tokens: int, cached_tokens: int, prefill_seconds: float) -> Iterator[Event]:
        """All events, with `done` at the end."""
        yield from self.events()
        yield self.done(prompt_tokens, cached_tokens, prefill_seconds)

    def _generate(self) -> Iterator[Event]:
        if self._parser.ended:  # by a call that the answer began with
            self.finish_reason = "tool_calls"
            return
        generation = self._generation
        yield from self._put_in()
        for token in generation:
            self._control.accept(token.id)
            yield from self._feed(token)
            if self._stop.matched is not None:
                self.finish_reason = "stop"
                return
            if self._is_cancelled():
                self.finish_reason = "cancelled"
                return
            if self._parser.ended:
                self.finish_reason = "tool_calls"
                return
            yield from self._put_in()

    def _put_in(self) -> Iterator[Event]:
        for token in self._generation.force(self._control.forced()):
            self._control.accept(token, forced=True)
            yield from self._feed(GeneratedToken(token, 0.0))  # certain to come

    def _feed(self, token: GeneratedToken) -> Iterator[Event]:
        self.generation_seconds = time.perf_counter() - self._began
        if self._tokenizer.is_special(token.id):
            return  # a control token is not text
        text = self._detokenizer.feed(token.id)
        if self._spans is not None:
            self._spans.add(described_token(self._tokenizer, token), text)
        yield from self._deliver(self._parser.feed(text))

    def _deliver(self, pieces: Sequence[ParsedPiece]) -> Iterator[Event]:
        for piece in pieces:
            if self._stop.matched is not None:
                return
            if isinstance(piece, ContentDelta):
                self._undelivered.append((piece.start, len(piece.text)))
                yield from self._content(self._stop.feed(piece.text))
            elif isinstance(piece, ReasoningDelta):
                self.reasoning += piece.text
                yield replace(piece, logprobs=self._logprobs_of(piece.text, piece.start))
            else:
                # No stop string reaches across a call.
                yield from self._content(self._stop.finish())
                if isinstance(piece, ToolCallEvent):
                    self.tool_calls.append(piece.call)
                yield piece

    def _content(self, text: str) -> Iterator[Event]:
        """Content that the stop strings have let through."""
        if not text:
            return
        self.content += text
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

    def _finish_reason_of_generation(self) -> None:
        self.ended_by_model = self._generation.finish_reason == "stop"
        self.finish_reason = "stop" if self.ended_by_model else "length"

    def _logprobs_of(self, text: str, start: int) -> tuple[TokenLogprob, ...]:
        return () if self._spans is None else self._spans.take(text, start)
