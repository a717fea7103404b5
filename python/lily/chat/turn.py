"""One turn of the model: generates the answer to a session's prompt as typed events."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from lily.chat.control import TurnControl
from lily.chat.events import ContentDelta, Done, Event, ReasoningDelta, Timings, ToolCall, ToolCallEvent, Usage
from lily.chat.output_parser import OutputParser
from lily.chat.output_stream import OutputStream
from lily.chat.think_tags import CLOSE_THINK
from lily.session.generation import Generation
from lily.text import Tokenizer

__all__ = ["Turn"]

_ENDED_IN_THINKING = "the answer ended inside its thinking"


class Turn:
    """Lets a parser read the output of a generation, and keeps what came out.

    Attributes
    ----------
    content, reasoning : str
        The texts so far.
    tool_calls : list of ToolCall
        The calls so far.
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
        self._generation = generation
        self._parser = parser
        self._control = control
        self._output = OutputStream(
            tokenizer, generation, parser, stop, is_cancelled, control=control, logprobs=logprobs
        )

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
    def ended_by_model(self) -> bool:
        """Whether the model ended its turn."""
        return self._output.ended_by_model

    @property
    def is_whole(self) -> bool:
        """Whether the output is all that the model had to say, and all of it is in the message."""
        return self._parser.is_whole if self._parser.ended else self.ended_by_model

    @property
    def tokens(self) -> list[int]:
        """The output's ids, those put in included."""
        return self._generation.tokens

    def events(self) -> Iterator[Event]:
        """Generate to the end; `done` is left to the caller."""
        for event in self._output.events():
            if isinstance(event, ContentDelta):
                self.content += event.text
            elif isinstance(event, ReasoningDelta):
                self.reasoning += event.text
            elif isinstance(event, ToolCallEvent):
                self.tool_calls.append(event.call)
            yield event

    def done(self, prompt_tokens: int, cached_tokens: int, prefill_seconds: float) -> Done:
        """The event that ends the turn."""
        output = self._output
        if output.finish_reason is None:
            raise AssertionError("the turn has not ended")
        return Done(
            output.finish_reason,
            Usage(prompt_tokens, len(self.tokens), cached_tokens, self._control.reasoning_tokens),
            Timings(prefill_seconds, output.generation_seconds),
            stop_string=output.stop_string,
            partial_tool_call=self._parser.partial_tool_call,
            warnings=self._warnings(),
        )

    def whole(self, prompt_tokens: int, cached_tokens: int, prefill_seconds: float) -> Iterator[Event]:
        """All events, with `done` at the end."""
        yield from self.events()
        yield self.done(prompt_tokens, cached_tokens, prefill_seconds)

    def _warnings(self) -> tuple[str, ...]:
        in_thinking = self.ended_by_model and self._parser.in_reasoning and not self.tool_calls
        return (*self._control.warnings, *((_ENDED_IN_THINKING,) if in_thinking else ()))
