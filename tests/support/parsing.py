"""Feeds text to the output parser in pieces and puts what comes out together."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from typing import Any

from lily.chat.argument_values import ToolSchemas
from lily.chat.events import ContentDelta, ReasoningDelta, ToolCallDelta, ToolCallEvent
from lily.chat.output_parser import OutputParser


def tool(name: str, required: Sequence[str] = (), **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def call_text(name: str, **arguments: Any) -> str:
    """A call as the chat template writes it."""
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


def pieces_of(text: str, borders: Iterable[int]) -> list[str]:
    places = [0, *sorted({border for border in borders if 0 < border < len(text)}), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(places)]


def parse(pieces: Iterable[str], *, reasoning=False, tools=None, truncated=False, begun="") -> dict[str, Any]:
    """Content, reasoning, calls and the cut-off call of an output that comes in pieces."""
    parser = OutputParser(reasoning=reasoning, tools=None if tools is None else ToolSchemas(tools), begun=begun)
    events = [event for piece in pieces for event in parser.feed(piece)]
    events += parser.finish(truncated=truncated)
    content = "".join(event.text for event in events if isinstance(event, ContentDelta))
    thought = "".join(event.text for event in events if isinstance(event, ReasoningDelta))
    calls = [
        (event.call.name, dict(event.call.arguments))
        for event in events
        if not isinstance(event, (ContentDelta, ReasoningDelta))
    ]
    return {"content": content, "reasoning": thought, "calls": calls, "partial": parser.partial_tool_call}


def parse_with_deltas(pieces: Iterable[str], *, reasoning=False, tools=(), truncated=False, begun="") -> dict[str, Any]:
    """As `parse`, from a parser that yields pieces of calls, after checking that they add up to the calls."""
    parser = OutputParser(reasoning=reasoning, tools=ToolSchemas(tools), call_deltas=True, begun=begun)
    events = [event for piece in pieces for event in parser.feed(piece)]
    events += parser.finish(truncated=truncated)
    written: dict[str, list[ToolCallDelta]] = {}
    complete = set()
    for event in events:
        if isinstance(event, ToolCallDelta):
            assert event.id not in complete
            written.setdefault(event.id, []).append(event)
        elif isinstance(event, ToolCallEvent):
            complete.add(event.call.id)
            deltas = written[event.call.id]
            assert {delta.name for delta in deltas} == {event.call.name}
            assert json.loads("".join(delta.arguments for delta in deltas)) == event.call.arguments
    assert len(set(written) - complete) <= len(parser.partial_tool_call)  # only a call that was cut off
    return {
        "content": "".join(event.text for event in events if isinstance(event, ContentDelta)),
        "reasoning": "".join(event.text for event in events if isinstance(event, ReasoningDelta)),
        "calls": [
            (event.call.name, dict(event.call.arguments)) for event in events if isinstance(event, ToolCallEvent)
        ],
        "partial": parser.partial_tool_call,
        "pieces": sum(len(deltas) for deltas in written.values()),
    }


def parse_every_way(text: str, **options: Any) -> dict[str, Any]:
    """The result, after checking that it is the same for the whole text, single characters and some other cuts."""
    whole = parse([text], **options)
    assert parse(list(text), **options) == whole
    for step in (2, 3, 7, 11):
        assert parse(pieces_of(text, range(step, len(text), step)), **options) == whole
    for border in range(1, len(text)):
        assert parse([text[:border], text[border:]], **options) == whole
    return whole


def parse_begun(text: str, border: int, **options: Any) -> dict[str, Any]:
    """The result of an output that goes on with the text up to the border, after checking that cuts do not matter.

    Content and reasoning hold what the output began with again.
    """
    begun, rest = text[:border], text[border:]
    whole = parse([rest], begun=begun, **options)
    assert parse(list(rest), begun=begun, **options) == whole
    if options.get("tools"):
        streamed = parse_with_deltas(list(rest), begun=begun, **options)
        del streamed["pieces"]
        assert streamed == whole
    parser = OutputParser(
        reasoning=options.get("reasoning", False), tools=ToolSchemas(options.get("tools") or []), begun=begun
    )
    parser.feed(rest)
    parser.finish(truncated=options.get("truncated", False))
    content, reasoning = parser.begun_texts
    return {**whole, "content": content + whole["content"], "reasoning": reasoning + whole["reasoning"]}
