"""What a turn of a chat yields: pieces of reasoning and content, tool calls, and how it ended."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from lily.checks.arguments import as_stream
from lily.checks.quoting import quoted
from lily.errors import InvalidArgumentError

__all__ = [
    "Answer",
    "ContentDelta",
    "Done",
    "Event",
    "FinishReason",
    "ReasoningDelta",
    "Timings",
    "TokenLogprob",
    "ToolCall",
    "ToolCallDelta",
    "ToolCallEvent",
    "Usage",
    "collect",
    "new_call_id",
    "observed",
]

FinishReason = Literal["stop", "length", "tool_calls", "cancelled"]


@dataclass(frozen=True)
class TokenLogprob:
    """A token and the natural logarithm of its probability; `top` has the most probable alternatives.

    In a piece of text, `token` and `bytes` are the part of the token that belongs to that text; joined, they are the
    text. A character made of several tokens belongs to the last one's `token`. An inserted token has logarithm 0.
    """

    token: str
    id: int
    bytes: bytes
    logprob: float
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class ReasoningDelta:
    """A piece of the thinking block's text."""

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()
    start: int = field(default=0, compare=False, repr=False)  #: characters of the output before it, tags included


@dataclass(frozen=True)
class ContentDelta:
    """A piece of the answer's text."""

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()
    start: int = field(default=0, compare=False, repr=False)  #: characters of the output before it, tags included


def new_call_id() -> str:
    """An id for a tool call."""
    return f"call_{secrets.token_hex(12)}"


@dataclass(frozen=True)
class ToolCall:
    """A tool call that the model asks for.

    Attributes
    ----------
    name : str
        The tool's name; the model may have made it up.
    arguments : mapping
        Values by parameter, with the types of the tool's schema where the text fits them, otherwise strings.
    id : str
        Links the result to the call.
    """

    name: str
    arguments: Mapping[str, Any]
    id: str = field(default_factory=new_call_id)

    @property
    def arguments_json(self) -> str:
        """The arguments as JSON text, as OpenAI's format has them."""
        return json.dumps(self.arguments, ensure_ascii=False)

    def as_message_part(self) -> dict[str, Any]:
        """The entry of an assistant message's ``tool_calls``."""
        function = {"name": self.name, "arguments": self.arguments_json}
        return {"id": self.id, "type": "function", "function": function}


@dataclass(frozen=True)
class ToolCallEvent:
    """A complete, parsed tool call."""

    call: ToolCall


@dataclass(frozen=True)
class ToolCallDelta:
    """A piece of a call that is being written; only with `TurnOptions.call_deltas`.

    Joined, the texts of a call's pieces are the JSON of its arguments. The call itself follows as a `ToolCallEvent`
    with the same id, unless the end of the turn cuts it off.
    """

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Usage:
    """Token counts of a turn; the stop token is not counted.

    `cached_tokens` of the prompt were not computed again; `reasoning_tokens` are part of `completion_tokens`.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Prompt and completion."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True)
class Timings:
    """Wall-clock seconds of a turn."""

    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0


@dataclass(frozen=True)
class Done:
    """The end of a turn.

    Attributes
    ----------
    finish_reason : str
        "stop": the model ended its turn, or a stop string appeared; "length": max_tokens or the context ran out;
        "tool_calls": the model ended its turn with at least one call, or made the one allowed call; "cancelled":
        `Chat.cancel` was called.
    stop_string : str, optional
        The stop string that ended the turn.
    partial_tool_call : str
        Text of a tool call that the end of the turn cut off; it must not be executed.
    warnings : tuple of str
        Problems of a finished answer, for example that it ended inside its thinking.
    """

    finish_reason: FinishReason
    usage: Usage = Usage()
    timings: Timings = Timings()
    stop_string: str | None = None
    partial_tool_call: str = ""
    warnings: tuple[str, ...] = ()


Event = ReasoningDelta | ContentDelta | ToolCallDelta | ToolCallEvent | Done


@dataclass(frozen=True)
class Answer:
    """All events of one turn, joined."""

    content: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    done: Done

    @property
    def finish_reason(self) -> FinishReason:
        """How the turn ended."""
        return self.done.finish_reason

    def __str__(self) -> str:
        return self.content

    def _repr_markdown_(self) -> str:
        from lily.display import answer_markdown

        return answer_markdown(self)


def collect(events: Iterable[Event]) -> Answer:
    """Consume the events of one turn and join them."""
    content: list[str] = []
    reasoning: list[str] = []
    calls: list[ToolCall] = []
    done = Done("cancelled")
    for event in as_stream("events", events, "the events of a turn"):
        if isinstance(event, ContentDelta):
            content.append(event.text)
        elif isinstance(event, ReasoningDelta):
            reasoning.append(event.text)
        elif isinstance(event, ToolCallEvent):
            calls.append(event.call)
        elif isinstance(event, Done):
            done = event
        elif not isinstance(event, ToolCallDelta):
            raise InvalidArgumentError(f"events must be the events of a turn, not {quoted(event)}")
    return Answer("".join(content), "".join(reasoning), tuple(calls), done)


def observed(events: Iterable[Event], on_event: Callable[[Event], object] | None) -> Iterator[Event]:
    """The events, each passed to `on_event` first."""
    for event in events:
        if on_event is not None:
            on_event(event)
        yield event
