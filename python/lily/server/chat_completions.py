"""POST /v1/chat/completions."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from lily.chat import ContentDelta, Done, TokenLogprob, ToolCallDelta, ToolCallEvent
from lily.chat.events import Event
from lily.server.delivery import Reply, collect_answers, sse, start_stream
from lily.server.engine import PrefillProgress, Ticket, Work
from lily.server.errors import ApiError, openai_body, unsupported
from lily.server.fields import Fields
from lily.server.json_text import JsonResponse
from lily.server.openai_fields import (
    effort_of,
    logprob_entry,
    sampling_of,
    template_options_of,
    timings_body,
    usage_body,
)
from lily.server.service import Service
from lily.server.turns import ChatRequest, chat_work

__all__ = ["chat_completions", "chat_request", "check_text_only", "stream_options"]

_IGNORED = (
    "metadata",
    "prediction",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
    "verbosity",
)
_MEDIA_PARTS = ("image_url", "input_image", "image", "input_audio", "audio", "video_url", "video", "file", "input_file")


async def chat_completions(service: Service, request: Request, fields: Fields) -> Response:
    """Answer a conversation, at once or as a stream."""
    name, wanted, stream, include_usage, work = await service.prepare(request, _prepared, service, fields)
    head = {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": int(time.time()), "model": name}
    if stream:
        return await start_stream(service, request, work, _ChunkFormat(head, include_usage))
    replies, ticket = await collect_answers(service, request, work, wanted.choices)
    return JsonResponse(_completion(head, replies, ticket, with_logprobs=wanted.options.get("logprobs") is not None))


def _prepared(service: Service, fields: Fields) -> tuple[str, ChatRequest, bool, bool, Work]:
    name = service.model_name(fields)
    wanted = chat_request(service, fields)
    stream = fields.flag("stream", False)
    include_usage = stream_options(service, fields, stream)
    service.finish_fields(fields)
    return name, wanted, stream, include_usage, chat_work(service.model, wanted, call_deltas=stream)


def chat_request(service: Service, fields: Fields) -> ChatRequest:
    """The conversation and how to answer it."""
    messages = fields.required("messages")
    if not isinstance(messages, list) or not messages:
        raise fields.wrong("messages", "a list that is not empty", messages)
    check_text_only(messages)
    options: dict[str, Any] = {
        "stop": fields.strings("stop", 16),
        "response_format": fields.mapping("response_format"),
        "tool_choice": _tool_choice(fields),
        "parallel_tool_calls": fields.flag("parallel_tool_calls", True),
        "max_thinking_tokens": fields.integer("max_thinking_tokens", 0),
        "logprobs": _logprobs(fields),
    }
    limit = fields.integer("max_tokens", 1)
    newer = fields.integer("max_completion_tokens", 1)
    options["max_tokens"] = limit if newer is None else newer
    template_options = template_options_of(fields)
    for name in ("functions", "function_call", "audio", "web_search_options"):
        if fields.any(name) is not None:
            raise unsupported(name, f"{name} is not supported by this server; for calls there are tools")
    if fields.any("modalities", ["text"]) != ["text"]:
        raise unsupported("modalities", "this server reads and writes text only")
    fields.ignore(*_IGNORED)
    return ChatRequest(
        messages=messages,
        tools=_tools(fields),
        sampling=sampling_of(fields, service.model.default_sampling, service.model.sampled_vocab_size),
        thinking=_thinking(service, fields, template_options),
        options=options,
        choices=fields.integer("n", 1, 16) or 1,
        preserve_thinking=template_options.pop("preserve_thinking", False) is True,
        later_system=service.options.later_system,
        template_options=template_options,
    )


def stream_options(service: Service, fields: Fields, stream: bool) -> bool:
    """Whether a stream ends with its usage."""
    given = fields.mapping("stream_options")
    if given is None:
        return False
    if not stream:
        raise ApiError(400, "stream_options needs stream to be true", param="stream_options", code="invalid_value")
    inner = Fields(given, "stream_options.")
    include = inner.flag("include_usage", False)
    inner.ignore("include_obfuscation")
    service.finish_fields(inner)
    return include


def check_text_only(messages: list[Any]) -> None:
    """ApiError for the first image, sound or file."""
    for index, message in enumerate(messages):
        content = message.get("content") if isinstance(message, dict) else None
        for at, part in enumerate(content if isinstance(content, list) else []):
            if isinstance(part, dict) and part.get("type") in _MEDIA_PARTS:
                raise ApiError(
                    400,
                    f"part {at} is of type {part['type']!r}, but this model reads text only: no images, sound or files",
                    param=f"messages[{index}].content[{at}]",
                    code="unsupported_content",
                )


def _tools(fields: Fields) -> list[dict[str, Any]] | None:
    tools = fields.items("tools")
    for index, tool in enumerate(tools or ()):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise ApiError(
                400,
                f"tools[{index}] must be an object of type function with a name",
                param=f"tools[{index}]",
                code="invalid_value",
            )
    return tools


def _tool_choice(fields: Fields) -> str | dict[str, Any] | None:
    choice = fields.any("tool_choice")
    if choice is not None and not isinstance(choice, (str, dict)):
        raise fields.wrong("tool_choice", "a string or an object", choice)
    return choice


def _logprobs(fields: Fields) -> int | None:
    wanted = fields.flag("logprobs", False)
    top = fields.integer("top_logprobs", 0, 20)
    if top is not None and not wanted:
        raise ApiError(400, "top_logprobs needs logprobs to be true", param="top_logprobs", code="invalid_value")
    return (top or 0) if wanted else None


def _thinking(service: Service, fields: Fields, template_options: dict[str, Any]) -> bool | None:
    effort = effort_of(fields, "reasoning_effort")
    thinking = service.options.thinking if effort is None else effort != "none"
    thinking = fields.flag("enable_thinking", thinking)
    chosen = template_options.pop("enable_thinking", thinking)
    if not isinstance(chosen, bool):
        raise fields.wrong("chat_template_kwargs", "an object whose enable_thinking is true or false", chosen)
    return chosen


def _completion(head: dict[str, Any], replies: list[Reply], ticket: Ticket, *, with_logprobs: bool) -> dict[str, Any]:
    dones = [reply.answer.done for reply in replies]
    choices = []
    for index, reply in enumerate(replies):
        answer = reply.answer
        message: dict[str, Any] = {"role": "assistant", "content": answer.content, "refusal": None}
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        if answer.tool_calls:
            message["content"] = answer.content or None
            message["tool_calls"] = [call.as_message_part() for call in answer.tool_calls]
        entries = [logprob_entry(item) for item in reply.logprobs] if with_logprobs else None
        logprobs = None if entries is None else {"content": entries, "refusal": None}
        choices.append(
            {"index": index, "message": message, "logprobs": logprobs, "finish_reason": answer.finish_reason}
        )
    return {
        **head,
        "object": "chat.completion",
        "choices": choices,
        "usage": usage_body(dones),
        "timings": timings_body(dones, ticket.queue_seconds),
        "system_fingerprint": None,
    }


class _ChunkFormat:
    """A stream of chat completion chunks."""

    def __init__(self, head: dict[str, Any], include_usage: bool) -> None:
        self._head = {**head, "object": "chat.completion.chunk", "system_fingerprint": None}
        self._include_usage = include_usage
        self._calls: dict[int, list[str]] = {}  # ids by choice
        self._started: set[int] = set()
        self._dones: list[Done] = []

    def begin(self, prefill: PrefillProgress | None) -> Iterator[bytes]:
        del prefill
        yield from self._start(0)

    def event(self, choice: int, event: Event) -> Iterator[bytes]:
        yield from self._start(choice)
        if isinstance(event, Done):
            self._dones.append(event)
            yield self._chunk(choice, {}, finish_reason=event.finish_reason)
        elif isinstance(event, ToolCallDelta):
            yield self._chunk(choice, {"tool_calls": [self._call_piece(choice, event)]})
        elif not isinstance(event, ToolCallEvent):
            is_content = isinstance(event, ContentDelta)
            field = "content" if is_content else "reasoning_content"
            yield self._chunk(choice, {field: event.text}, logprobs=event.logprobs if is_content else ())

    def end(self, queue_seconds: float) -> Iterator[bytes]:
        if self._include_usage and self._dones:
            timings = timings_body(self._dones, queue_seconds)
            yield sse({**self._head, "choices": [], "usage": usage_body(self._dones), "timings": timings})
        yield sse("[DONE]")

    def error(self, error: ApiError) -> bytes:
        return sse(openai_body(error))

    def _call_piece(self, choice: int, event: ToolCallDelta) -> dict[str, Any]:
        ids = self._calls.setdefault(choice, [])
        if event.id in ids:
            return {"index": ids.index(event.id), "function": {"arguments": event.arguments}}
        ids.append(event.id)
        function = {"name": event.name, "arguments": event.arguments}
        return {"index": len(ids) - 1, "id": event.id, "type": "function", "function": function}

    def _start(self, choice: int) -> Iterator[bytes]:
        if choice not in self._started:
            self._started.add(choice)
            yield self._chunk(choice, {"role": "assistant", "content": ""})

    def _chunk(
        self,
        choice: int,
        delta: dict[str, Any],
        *,
        finish_reason: str | None = None,
        logprobs: tuple[TokenLogprob, ...] = (),
    ) -> bytes:
        entries = {"content": [logprob_entry(item) for item in logprobs], "refusal": None} if logprobs else None
        one = {"index": choice, "delta": delta, "logprobs": entries, "finish_reason": finish_reason}
        body = {**self._head, "choices": [one]}
        if self._include_usage:
            body["usage"] = None
        return sse(body)
