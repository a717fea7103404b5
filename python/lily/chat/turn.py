"""One turn of the model: generates the answer to a prompt that a session holds, as typed events."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from lily.chat.control import TurnControl
from lily.chat.events import (
    ContentDelta,
    Done,
    Event,
    FinishReason,
    ReasoningDelta,
    Timings,
    TokenLogprob,
    ToolCall,
    ToolCallDelta,
    ToolCallEvent,
    Usage,
)
from lily.chat.output_parser import OutputParser, ParsedPiece
from lily.chat.stop_strings import StopStrings
from lily.errors import CancelledError
from lily.generation import GeneratedToken, Generation
from lily.text import Tokenizer

__all__ = ["Turn"]


class Turn:
    """Feeds the tokens of a generation to the parser and keeps what came out.

    Attributes
    ----------
    content, reasoning : str
        The texts so far.
    tool_calls : list of ToolCall
        The calls so far.
    finish_reason : str, optional
        None while it goes on.
    ended_by_model : bool
        Whether the model ended its turn, so that the output is whole.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        generation: Generation,
        parser: OutputParser,
        control: TurnControl,
        stop: Sequence[str],
        is_cancelled: Callable[[], bool],
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
        self._logprobs: list[TokenLogprob] = []
        self._began = time.perf_counter()
        self.generation_seconds = 0.0

    @property
    def message(self) -> dict[str, object]:
        """The assistant's message so far, in OpenAI's form with ``reasoning_content``."""
        message: dict[str, object] = {"role": "assistant", "content": self.content}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = [call.as_message_part() for call in self.tool_calls]
        return message

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
        )

    def events(self) -> Iterator[Event]:
        """Generate to the end; `done` is left to the caller."""
        try:
            yield from self._generate()
        except CancelledError:
            self.finish_reason = "cancelled"
        if self.finish_reason is None:
            self._finish_reason_of_generation()
        truncated = not self.ended_by_model
        yield from self._deliver(self._parser.feed(self._detokenizer.finish()))
        if self._stop.matched is None:
            yield from self._deliver(self._parser.finish(truncated=truncated))
        if self._stop.matched is None:
            rest = self._stop.finish()
            if rest:
                self.content += rest
                yield ContentDelta(rest, self._take_logprobs())
        elif self.finish_reason != "cancelled":
            self.finish_reason = "stop"
        if self.ended_by_model and self.tool_calls and self._stop.matched is None:
            self.finish_reason = "tool_calls"

    def _generate(self) -> Iterator[Event]:
        generation = self._generation
        yield from self._put_in()
        for token in generation:
            self._control.accept(token.id)
            if token.logprob is not None:
                self._logprobs.append(self._described(token))
            yield from self._feed(token.id)
            if self._stop.matched is not None:
                self.finish_reason = "stop"
                return
            if self._is_cancelled():
                self.finish_reason = "cancelled"
                return
            yield from self._put_in()

    def _put_in(self) -> Iterator[Event]:
        for token in self._generation.force(self._control.forced()):
            self._control.accept(token, forced=True)
            yield from self._feed(token)

    def _feed(self, token: int) -> Iterator[Event]:
        self.generation_seconds = time.perf_counter() - self._began
        if self._tokenizer.is_special(token):
            return  # a control token is not text
        yield from self._deliver(self._parser.feed(self._detokenizer.feed(token)))

    def _deliver(self, pieces: Sequence[ParsedPiece]) -> Iterator[Event]:
        for piece in pieces:
            if self._stop.matched is not None:
                return
            if isinstance(piece, ToolCallDelta):
                self._logprobs.clear()
                yield piece
            elif isinstance(piece, ToolCallEvent):
                self._logprobs.clear()
                self.tool_calls.append(piece.call)
                yield piece
            elif isinstance(piece, ReasoningDelta):
                self.reasoning += piece.text
                yield ReasoningDelta(piece.text, self._take_logprobs())
            else:
                text = self._stop.feed(piece.text)
                if text:
                    self.content += text
                    yield ContentDelta(text, self._take_logprobs())

    def _finish_reason_of_generation(self) -> None:
        self.ended_by_model = self._generation.finish_reason == "stop"
        self.finish_reason = "stop" if self.ended_by_model else "length"

    def _take_logprobs(self) -> tuple[TokenLogprob, ...]:
        taken, self._logprobs = tuple(self._logprobs), []
        return taken

    def _described(self, token: GeneratedToken) -> TokenLogprob:
        top = tuple(self._logprob(id_, value) for id_, value in token.top_logprobs)
        return self._logprob(token.id, token.logprob or 0.0, top)

    def _logprob(self, token: int, logprob: float, top: tuple[TokenLogprob, ...] = ()) -> TokenLogprob:
        data = self._tokenizer.token_bytes(token)
        return TokenLogprob(data.decode("utf-8", "replace"), token, data, logprob, top)
