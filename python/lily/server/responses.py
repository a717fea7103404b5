"""POST /v1/responses: OpenAI's Responses API, without state on the server."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from lily.chat import Done, ReasoningDelta, TokenLogprob, ToolCallDelta, ToolCallEvent
from lily.chat.events import Event
from lily.server.delivery import collect_answers, sse, start_stream
from lily.server.engine import PrefillProgress, Work
from lily.server.errors import ApiError
from lily.server.fields import Fields
from lily.server.json_text import JsonResponse
from lily.server.openai_fields import logprob_entry, timings_body
from lily.server.responses_request import responses_chat_request
from lily.server.service import Service
from lily.server.turns import ChatRequest, chat_work

__all__ = ["responses"]

_ECHOED = (
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "metadata",
    "parallel_tool_calls",
    "reasoning",
    "safety_identifier",
    "text",
    "tool_choice",
    "tools",
    "top_logprobs",
    "user",
)
_ECHO_DEFAULTS: Mapping[str, Any] = {
    "metadata": {},
    "parallel_tool_calls": True,
    "reasoning": {"effort": None, "summary": None},
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
}


async def responses(service: Service, request: Request, fields: Fields) -> Response:
    """Answer a conversation, at once or as a stream."""
    head, stream, work = await service.prepare(request, _prepared, service, fields)
    form = _ResponseFormat(head)
    if stream:
        return await start_stream(service, request, work, form)
    replies, ticket = await collect_answers(service, request, work, 1)
    # The same items as those of a stream.
    for event in replies[0].events:
        for _ in form.event(0, event):
            pass
    return JsonResponse(form.response(ticket.queue_seconds))


def _prepared(service: Service, fields: Fields) -> tuple[dict[str, Any], bool, Work]:
    name = service.model_name(fields)
    wanted = responses_chat_request(service, fields)
    stream = fields.flag("stream", False)
    if fields.mapping("stream_options") is not None and not stream:
        raise ApiError(400, "stream_options needs stream to be true", param="stream_options", code="invalid_value")
    head = _head(name, fields, wanted)
    service.finish_fields(fields)
    return head, stream, chat_work(service.model, wanted, call_deltas=True)


def _head(name: str, fields: Fields, wanted: ChatRequest) -> dict[str, Any]:
    echoed = {key: fields.any(key, _ECHO_DEFAULTS.get(key)) for key in _ECHOED}
    return {
        "id": f"resp_{secrets.token_hex(16)}",
        "object": "response",
        "created_at": int(time.time()),
        "model": name,
        **echoed,
        "temperature": wanted.sampling.temperature,
        "top_p": wanted.sampling.top_p,
        "background": False,
        "store": False,
        "previous_response_id": None,
        "truncation": "disabled",
    }


def _usage(done: Done) -> dict[str, Any]:
    usage = done.usage
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }


class _ResponseFormat:
    """A response that grows by items: reasoning, a message, function calls."""

    def __init__(self, head: dict[str, Any]) -> None:
        self._head = head
        self._items: list[dict[str, Any]] = []
        self._open: str | None = None  # which item goes on: "reasoning", "message" or the id of a call
        self._logprobs: list[dict[str, Any]] = []
        self._number = 0
        self._done: Done | None = None

    def begin(self, prefill: PrefillProgress | None) -> Iterator[bytes]:
        del prefill
        yield self._event("response.created", response=self._response("in_progress"))
        yield self._event("response.in_progress", response=self._response("in_progress"))

    def event(self, choice: int, event: Event) -> Iterator[bytes]:
        del choice
        if isinstance(event, Done):
            self._done = event
            yield from self._close("incomplete" if event.finish_reason == "length" else "completed")
        elif isinstance(event, ToolCallDelta):
            yield from self._call(event)
        elif isinstance(event, ToolCallEvent):
            yield from self._close()
        elif isinstance(event, ReasoningDelta):
            yield from self._text("reasoning", event.text)
        else:
            yield from self._text("message", event.text, event.logprobs)

    def end(self, queue_seconds: float) -> Iterator[bytes]:
        response = self.response(queue_seconds)
        yield self._event(f"response.{response['status']}", response=response)

    def error(self, error: ApiError) -> bytes:
        told = {"code": error.code or "server_error", "message": error.message}
        response = {**self._response("failed"), "error": told}
        return self._event("error", **told, param=error.param) + self._event("response.failed", response=response)

    def response(self, queue_seconds: float) -> dict[str, Any]:
        """The whole response, once the turn is done."""
        done = self._done
        if done is None:
            raise AssertionError("the turn has not ended")
        status = "incomplete" if done.finish_reason == "length" else "completed"
        timings = timings_body([done], queue_seconds)
        return {**self._response(status), "usage": _usage(done), "timings": timings}

    def _response(self, status: str) -> dict[str, Any]:
        details = {"reason": "max_output_tokens"} if status == "incomplete" else None
        body = {**self._head, "status": status, "error": None, "incomplete_details": details}
        return {**body, "output": self._items, "usage": None}

    def _text(self, kind: str, text: str, logprobs: tuple[TokenLogprob, ...] = ()) -> Iterator[bytes]:
        if self._open != kind:
            yield from self._close()
            yield from self._begin_text(kind)
        part = self._items[-1]["content"][0]
        part["text"] += text
        if kind == "reasoning":
            yield self._event("response.reasoning_text.delta", **self._place(), content_index=0, delta=text)
            return
        entries = [logprob_entry(item) for item in logprobs]
        part["logprobs"] += entries
        yield self._event("response.output_text.delta", **self._place(), content_index=0, delta=text, logprobs=entries)

    def _begin_text(self, kind: str) -> Iterator[bytes]:
        if kind == "reasoning":
            item: dict[str, Any] = {"id": _id("rs"), "type": "reasoning", "summary": [], "content": []}
            part: dict[str, Any] = {"type": "reasoning_text", "text": ""}
        else:
            item = {"id": _id("msg"), "type": "message", "role": "assistant", "content": []}
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        yield self._add(kind, item)
        self._items[-1]["content"].append(part)
        yield self._event("response.content_part.added", **self._place(), content_index=0, part=part)

    def _call(self, event: ToolCallDelta) -> Iterator[bytes]:
        if self._open != event.id:
            yield from self._close()
            item = {"id": _id("fc"), "type": "function_call", "call_id": event.id, "name": event.name, "arguments": ""}
            yield self._add(event.id, item)
        self._items[-1]["arguments"] += event.arguments
        if event.arguments:
            yield self._event("response.function_call_arguments.delta", **self._place(), delta=event.arguments)

    def _add(self, name: str, item: dict[str, Any]) -> bytes:
        self._open = name
        self._items.append({**item, "status": "in_progress"})
        return self._event("response.output_item.added", output_index=len(self._items) - 1, item=self._items[-1])

    def _close(self, status: str = "completed") -> Iterator[bytes]:
        if self._open is None:
            return
        self._open = None
        item = self._items[-1]
        item["status"] = status
        place = self._place()
        if item["type"] == "function_call":
            done = {"name": item["name"], "arguments": item["arguments"]}
            yield self._event("response.function_call_arguments.done", **place, **done)
        else:
            part = item["content"][0]
            if item["type"] == "reasoning":
                yield self._event("response.reasoning_text.done", **place, content_index=0, text=part["text"])
            else:
                rest = {"text": part["text"], "logprobs": part["logprobs"]}
                yield self._event("response.output_text.done", **place, content_index=0, **rest)
            yield self._event("response.content_part.done", **place, content_index=0, part=part)
        yield self._event("response.output_item.done", output_index=len(self._items) - 1, item=item)

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._items[-1]["id"], "output_index": len(self._items) - 1}

    def _event(self, kind: str, **fields: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        return sse({"type": kind, "sequence_number": number, **fields}, kind)


def _id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(16)}"
