"""POST /v1/chat/completions."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from lily.chat import ContentDelta, Done, TokenLogprob, ToolCall, ToolCallDelta, ToolCallEvent, TurnOptions
from lily.chat.events import Event
from lily.server.answer_forms import form_of
from lily.server.chat_history import read_chat_messages
from lily.server.content_parts import PartReader
from lily.server.delivery import Reply, collect_answers, sse, start_stream
from lily.server.engine import PrefillProgress, Ticket, Work
from lily.server.errors import ApiError, openai_body, unsupported
from lily.server.fields import Fields
from lily.server.json_text import JsonResponse
from lily.server.message_roles import message_list
from lily.server.openai_fields import (
    logprob_entry,
    sampling_of,
    stops_of,
    template_options_of,
    thinking_of,
    timings_body,
    token_limit,
    usage_body,
)
from lily.server.request_rules import CHAT_RULES
from lily.server.request_warnings import Warnings
from lily.server.service import Service
from lily.server.steps import Steps
from lily.server.tool_definitions import RequestTools
from lily.server.turns import ChatRequest, chat_work, errors_at
from lily.server.work_limits import check_counts

__all__ = ["chat_completions", "chat_request", "stream_options"]


async def chat_completions(service: Service, request: Request, fields: Fields) -> Response:
    """Answer a conversation, at once or as a stream."""
    name, wanted, stream, include_usage, writer, work = await service.prepare(request, _prepared, service, fields)
    head = {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": int(time.time()), "model": name}
    if stream:
        form = _ChunkFormat(head, include_usage, writer, fields.warnings)
        return fields.warnings.put_into(await start_stream(service, request, work, form))
    replies, ticket = await collect_answers(service, request, work, wanted.choices)
    with_logprobs = wanted.options.logprobs is not None
    body = _completion(head, replies, ticket, writer, with_logprobs=with_logprobs)
    dones = [reply.answer.done for reply in replies]
    return fields.warnings.put_into(JsonResponse({**body, **fields.warnings.body(dones)}))


def _prepared(steps: Steps, service: Service, fields: Fields) -> tuple[str, ChatRequest, bool, bool, _CallWriter, Work]:
    name = service.model_name(fields)
    wanted = chat_request(service, fields, steps)
    stream = fields.flag("stream", False)
    include_usage = stream_options(service, fields, stream)
    writer = _CallWriter(wanted.tools_of_client, legacy=fields.any("functions") is not None)
    service.finish_fields(fields)
    work = chat_work(service.model, wanted, steps, call_deltas=stream and writer.writes_pieces)
    return name, wanted, stream, include_usage, writer, work


def chat_request(service: Service, fields: Fields, steps: Steps) -> ChatRequest:
    """The conversation and how to answer it."""
    strict = service.options.strict
    messages = message_list(fields.required("messages"), strict=strict)
    if messages is None:
        raise fields.wrong("messages", "a non-empty list", fields.any("messages"))
    check_counts(service.model, messages, fields.any("tools") or fields.any("functions"))
    reader = PartReader(fields.warnings, strict=strict, check=steps.check)
    history = read_chat_messages(messages, reader, fields.warnings, strict=strict)
    template_options = template_options_of(fields)
    begun = history.finish(strict=strict, keep_thinking=template_options.get("preserve_thinking") is True)
    _check_continuation(fields, begun, strict=strict)
    tools = _tools(fields, strict)
    thinking, budget = thinking_of(service, fields, template_options)
    if fields.any("modalities", ["text"]) != ["text"]:
        raise unsupported("modalities", "this server reads and writes text only")
    form = form_of(fields)
    seen = tools.for_model(history.messages, with_form=form is not None)
    with errors_at(history.places):
        options = TurnOptions(
            stop=stops_of(service, fields),
            response_format=form,
            tool_choice=seen.choice,
            parallel_tool_calls=fields.flag("parallel_tool_calls", fields.any("functions") is None),
            max_thinking_tokens=budget,
            logprobs=_logprobs(fields),
            max_tokens=token_limit(fields, "max_completion_tokens", "max_tokens", "n_predict", "num_predict", low=1),
            sampling=sampling_of(fields, service.model.default_sampling, service.model.sampled_vocab_size),
            continue_answer=begun,
        )
    CHAT_RULES.apply(fields, strict=strict)
    return ChatRequest(
        messages=seen.messages,
        tools=seen.functions or None,
        thinking=thinking,
        options=options,
        choices=fields.integer("n", 1, 16) or 1,
        preserve_thinking=template_options.pop("preserve_thinking", False) is True,
        later_system=service.options.later_system,
        template_options=template_options,
        places=history.places,
        tools_of_client=tools,
    )


def _check_continuation(fields: Fields, begun: bool, *, strict: bool) -> None:
    """Other servers' options for continuing the last message; here an answer at the end is always continued."""
    goes_on = fields.flag("continue_final_message", begun)
    new_turn = fields.flag("add_generation_prompt", not begun)
    if goes_on and not begun:
        what = "needs a non-empty assistant message at the end"
        if strict:
            name = "continue_final_message"
            raise ApiError(400, f"{name} {what}", param=name, code="invalid_value")
        fields.warnings.add(f"continue_final_message is ignored: it {what}; the last message is answered")
    if begun and not goes_on:
        fields.warnings.add("continue_final_message is ignored: an assistant message at the end is always continued")
    if not begun and not new_turn and not goes_on:
        fields.warnings.add("add_generation_prompt is ignored: the assistant's turn follows the last message")


def stream_options(service: Service, fields: Fields, stream: bool) -> bool:
    """Whether a stream ends with its usage."""
    given = fields.mapping("stream_options")
    if given is None:
        return False
    inner = fields.inner("stream_options")
    include = inner.flag("include_usage", False)
    inner.ignore("include_obfuscation", "continuous_usage_stats")
    service.finish_fields(inner)
    if stream:
        return include
    if service.options.strict:
        raise ApiError(400, "stream_options needs stream to be true", param="stream_options", code="invalid_value")
    fields.warnings.add("stream_options is ignored: the answer is not streamed, and includes its usage")
    return False


def _tools(fields: Fields, strict: bool) -> RequestTools:
    """The tools; `functions` and `function_call` are their older names."""
    tools = RequestTools(fields.warnings, strict=strict)
    tools.add_all("tools[{}]", fields.items("tools") or [])
    functions = fields.items("functions") or []
    tools.add_all("functions[{}]", [{"type": "function", "function": one} for one in functions])
    older = fields.any("function_call")
    if fields.any("tool_choice") is not None or older is None:
        tools.choose(fields.any("tool_choice"))
    else:
        tools.choose({"type": "function", **older} if isinstance(older, dict) else older, "function_call")
    return tools


def _logprobs(fields: Fields) -> int | None:
    wanted = fields.flag("logprobs", False)
    top = fields.integer("top_logprobs", 0, 20)
    if top and not wanted:
        raise ApiError(400, "top_logprobs needs logprobs to be true", param="top_logprobs", code="invalid_value")
    return (top or 0) if wanted else None


class _CallWriter:
    """Writes calls in the client's form for the tool: a function, a custom tool, or the older function_call."""

    def __init__(self, tools: RequestTools | None, *, legacy: bool) -> None:
        self._tools = tools
        self._legacy = legacy

    @property
    def writes_pieces(self) -> bool:
        """Whether pieces of calls can be streamed as they arrive."""
        return not self._legacy

    def is_whole(self, name: str) -> bool:
        """Whether a call is written only when complete, because its text is not the text of its arguments."""
        return self._tools is not None and self._tools.is_custom(name)

    def entry(self, call: ToolCall) -> dict[str, Any]:
        """The entry of tool_calls."""
        if self._tools is None or not self._tools.is_custom(call.name):
            return call.as_message_part()
        return {
            "id": call.id,
            "type": "custom",
            "custom": {"name": call.name, "input": self._tools.custom_input(call)},
        }

    def fields(self, calls: Sequence[ToolCall]) -> dict[str, Any]:
        """The fields of a message that makes these calls."""
        if self._legacy:
            return {"function_call": calls[0].as_message_part()["function"]}
        return {"tool_calls": [self.entry(call) for call in calls]}

    def finish_reason(self, reason: str) -> str:
        """The tool's name as the client knows it."""
        return "function_call" if self._legacy and reason == "tool_calls" else reason


def _completion(
    head: dict[str, Any], replies: list[Reply], ticket: Ticket, writer: _CallWriter, *, with_logprobs: bool
) -> dict[str, Any]:
    dones = [reply.answer.done for reply in replies]
    choices = []
    for index, reply in enumerate(replies):
        answer = reply.answer
        message: dict[str, Any] = {"role": "assistant", "content": answer.content, "refusal": None}
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        if answer.tool_calls:
            message["content"] = answer.content or None
            message |= writer.fields(answer.tool_calls)
        entries = [logprob_entry(item) for item in reply.logprobs] if with_logprobs else None
        logprobs = None if entries is None else {"content": entries, "refusal": None}
        reason = writer.finish_reason(answer.finish_reason)
        choices.append({"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason})
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

    def __init__(self, head: dict[str, Any], include_usage: bool, writer: _CallWriter, warnings: Warnings) -> None:
        self._head = {**head, "object": "chat.completion.chunk", "system_fingerprint": None}
        self._include_usage = include_usage
        self._writer = writer
        self._warnings = warnings
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
            yield self._chunk(choice, {}, done=event)
        elif isinstance(event, ToolCallDelta):
            if not self._writer.is_whole(event.name):
                yield self._chunk(choice, {"tool_calls": [self._call_piece(choice, event)]})
        elif isinstance(event, ToolCallEvent):
            yield from self._whole_call(choice, event.call)
        else:
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

    def _whole_call(self, choice: int, call: ToolCall) -> Iterator[bytes]:
        """A call that was not written in pieces."""
        ids = self._calls.setdefault(choice, [])
        if not self._writer.writes_pieces:
            yield self._chunk(choice, self._writer.fields([call]))
        elif call.id not in ids:
            ids.append(call.id)
            yield self._chunk(choice, {"tool_calls": [{"index": len(ids) - 1, **self._writer.entry(call)}]})

    def _start(self, choice: int) -> Iterator[bytes]:
        if choice not in self._started:
            self._started.add(choice)
            yield self._chunk(choice, {"role": "assistant", "content": ""})

    def _chunk(
        self,
        choice: int,
        delta: dict[str, Any],
        *,
        done: Done | None = None,
        logprobs: tuple[TokenLogprob, ...] = (),
    ) -> bytes:
        reason = None if done is None else self._writer.finish_reason(done.finish_reason)
        entries = {"content": [logprob_entry(item) for item in logprobs], "refusal": None} if logprobs else None
        one = {"index": choice, "delta": delta, "logprobs": entries, "finish_reason": reason}
        body = {**self._head, "choices": [one], **({} if done is None else self._warnings.body([done]))}
        if self._include_usage:
            body["usage"] = None
        return sse(body)
