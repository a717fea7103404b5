"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's API."""

from __future__ import annotations

import dataclasses
import hashlib
import secrets
from collections.abc import Iterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from lily.chat import (
    Answer,
    Done,
    ReasoningDelta,
    ToolCall,
    ToolCallDelta,
    ToolCallEvent,
    Usage,
)
from lily.chat.events import Event
from lily.server.anthropic_request import anthropic_chat_request
from lily.server.delivery import collect_answers, sse, start_stream
from lily.server.engine import PrefillProgress, Work
from lily.server.errors import ApiError, anthropic_body
from lily.server.fields import Fields
from lily.server.json_text import JsonResponse
from lily.server.openai_fields import token_limit
from lily.server.request_warnings import Warnings
from lily.server.service import Service
from lily.server.steps import Steps
from lily.server.turns import chat_work, errors_at, prompt_length

__all__ = ["count_tokens", "messages"]


async def messages(service: Service, request: Request, fields: Fields) -> Response:
    """Answer a conversation, at once or as a stream."""
    name, work, stream = await service.prepare(request, _prepared, service, fields)
    head = {"id": f"msg_{secrets.token_hex(12)}", "type": "message", "role": "assistant", "model": name}
    if stream:
        form = _MessageFormat(head, fields.warnings)
        return fields.warnings.put_into(await start_stream(service, request, work, form))
    replies, _ = await collect_answers(service, request, work, 1)
    answer = replies[0].answer
    end = {**_end(answer.done), "usage": _usage(answer.done.usage)}
    body = {**head, "content": _blocks(answer), **end, **fields.warnings.body([answer.done])}
    return fields.warnings.put_into(JsonResponse(body))


def _prepared(steps: Steps, service: Service, fields: Fields) -> tuple[str, Work, bool]:
    name = service.model_name(fields)
    fields.required("max_tokens")
    wanted = anthropic_chat_request(service, fields, steps)
    with errors_at(wanted.places, wanted.format_field):
        limit = token_limit(fields, "max_tokens")  # 0 only fills the cache
        options = dataclasses.replace(wanted.options, max_tokens=limit)
    stream = fields.flag("stream", False)
    service.finish_fields(fields)
    work = chat_work(service.model, dataclasses.replace(wanted, options=options), steps, call_deltas=stream)
    return name, work, stream


async def count_tokens(service: Service, request: Request, fields: Fields) -> Response:
    """The tokens of the prompt that a conversation makes."""

    def counted(steps: Steps) -> int:
        service.model_name(fields)
        wanted = anthropic_chat_request(service, fields, steps)
        fields.ignore("max_tokens", "stream")  # some clients send the body of the later request
        service.finish_fields(fields)
        return prompt_length(service.model, wanted, steps)

    count = await service.prepare(request, counted)
    return fields.warnings.put_into(JsonResponse({"input_tokens": count, **fields.warnings.body()}))


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.completion_tokens,
    }


def _signature(thinking: str) -> str:
    """The signature that clients store with the thinking. They require one; this server never checks it."""
    return hashlib.blake2b(thinking.encode("utf-8", "replace"), digest_size=24).hexdigest()


def _end(done: Done) -> dict[str, Any]:
    reason = {"length": "max_tokens", "tool_calls": "tool_use"}.get(done.finish_reason, "end_turn")
    if done.stop_string is not None:
        reason = "stop_sequence"
    return {"stop_reason": reason, "stop_sequence": done.stop_string}


def _call_block(call: ToolCall) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": dict(call.arguments)}


def _blocks(answer: Answer) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if answer.reasoning:
        blocks.append({"type": "thinking", "thinking": answer.reasoning, "signature": _signature(answer.reasoning)})
    if answer.content:
        blocks.append({"type": "text", "text": answer.content})
    return blocks + [_call_block(call) for call in answer.tool_calls]


class _MessageFormat:
    """A stream of one message; its blocks follow one another."""

    def __init__(self, head: dict[str, Any], warnings: Warnings) -> None:
        self._head = head
        self._warnings = warnings
        self._thinking = ""
        self._index = -1
        self._open: str | None = None

    def begin(self, prefill: PrefillProgress | None) -> Iterator[bytes]:
        usage = Usage() if prefill is None else Usage(prefill.total, 0, prefill.done)
        message = {**self._head, "content": [], "stop_reason": None, "stop_sequence": None, "usage": _usage(usage)}
        yield _event("message_start", message=message)

    def event(self, choice: int, event: Event) -> Iterator[bytes]:
        del choice
        if isinstance(event, Done):
            yield from self._close()
            more = self._warnings.body([event])
            yield _event("message_delta", delta=_end(event), usage=_usage(event.usage), **more)
        elif isinstance(event, ToolCallDelta):
            block = {"type": "tool_use", "id": event.id, "name": event.name, "input": {}}
            yield from self._start(event.id, block)
            yield self._delta({"type": "input_json_delta", "partial_json": event.arguments})
        elif isinstance(event, ToolCallEvent):
            yield from self._close()
        elif isinstance(event, ReasoningDelta):
            yield from self._start("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            self._thinking += event.text
            yield self._delta({"type": "thinking_delta", "thinking": event.text})
        else:
            yield from self._start("text", {"type": "text", "text": ""})
            yield self._delta({"type": "text_delta", "text": event.text})

    def end(self, queue_seconds: float) -> Iterator[bytes]:
        del queue_seconds
        yield _event("message_stop")

    def error(self, error: ApiError) -> bytes:
        return sse(anthropic_body(error), "error")

    def _start(self, name: str, block: dict[str, Any]) -> Iterator[bytes]:
        """Begin a block, unless the one of that name is open."""
        if self._open != name:
            yield from self._close()
            self._index += 1
            self._open = name
            yield _event("content_block_start", index=self._index, content_block=block)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=self._index, delta=delta)

    def _close(self) -> Iterator[bytes]:
        if self._open is not None:
            if self._open == "thinking":
                yield self._delta({"type": "signature_delta", "signature": _signature(self._thinking)})
                self._thinking = ""
            self._open = None
            yield _event("content_block_stop", index=self._index)


def _event(kind: str, **fields: Any) -> bytes:
    return sse({"type": kind, **fields}, kind)
