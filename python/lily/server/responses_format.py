"""A growing response of OpenAI's Responses API: its items, and the events that describe them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from lily.chat import Done, ReasoningDelta, TokenLogprob, ToolCall, ToolCallDelta, ToolCallEvent
from lily.chat.events import Event
from lily.server.delivery import sse
from lily.server.engine import PrefillProgress
from lily.server.errors import ApiError
from lily.server.openai_fields import logprob_entry, timings_body
from lily.server.request_warnings import Warnings
from lily.server.responses_history import sealed_reasoning
from lily.server.tool_definitions import RequestTools

__all__ = ["ResponseFormat"]


def _usage(done: Done) -> dict[str, Any]:
    usage = done.usage
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }


class ResponseFormat:
    """A response that grows by items: reasoning, a message, calls."""

    def __init__(
        self,
        head: Mapping[str, Any],
        tools: RequestTools,
        warnings: Warnings,
        keep: Callable[[dict[str, Any]], None],
        *,
        seal_reasoning: bool,
    ) -> None:
        """
        Parameters
        ----------
        head
            The fields known from the beginning.
        tools
            How the client calls its tools.
        warnings
            Of the request.
        keep
            Called with the response when it is complete.
        seal_reasoning
            Also give reasoning an `encrypted_content`, which some clients send back although they drop the text.
        """
        self._head = head
        self._tools = tools
        self._warnings = warnings
        self._keep = keep
        self._seal_reasoning = seal_reasoning
        self._items: list[dict[str, Any]] = []
        self._open: str | None = None  # the open item: "reasoning", "message" or the id of a call
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
            yield from self._end_call(event.call)
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
        warnings = self._warnings.body([done])
        response = {**self._response(status), "usage": _usage(done), "timings": timings, **warnings}
        self._keep(response)
        return response

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
            yield self._add(event.id, self._new_call(event))
        if self._items[-1]["type"] == "custom_tool_call":
            return  # its text is known only when its single argument is complete
        self._items[-1]["arguments"] += event.arguments
        if event.arguments:
            yield self._event("response.function_call_arguments.delta", **self._place(), delta=event.arguments)

    def _new_call(self, event: ToolCallDelta) -> dict[str, Any]:
        tools = self._tools
        custom = tools.is_custom(event.name)
        kind = {"type": "custom_tool_call", "input": ""} if custom else {"type": "function_call", "arguments": ""}
        item = {
            "id": _id("ctc" if custom else "fc"),
            "call_id": event.id,
            "name": tools.client_name(event.name),
            **kind,
        }
        namespace = tools.namespace(event.name)
        return item if namespace is None else {**item, "namespace": namespace}

    def _end_call(self, call: ToolCall) -> Iterator[bytes]:
        item = self._items[-1]
        if item["type"] == "custom_tool_call":
            item["input"] = self._tools.custom_input(call)
            yield self._event("response.custom_tool_call_input.delta", **self._place(), delta=item["input"])
        yield from self._close()

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
        elif item["type"] == "custom_tool_call":
            yield self._event("response.custom_tool_call_input.done", **place, input=item["input"])
        else:
            part = item["content"][0]
            if item["type"] == "reasoning":
                yield self._event("response.reasoning_text.done", **place, content_index=0, text=part["text"])
            else:
                rest = {"text": part["text"], "logprobs": part["logprobs"]}
                yield self._event("response.output_text.done", **place, content_index=0, **rest)
            yield self._event("response.content_part.done", **place, content_index=0, part=part)
            if item["type"] == "reasoning" and self._seal_reasoning:
                item["encrypted_content"] = sealed_reasoning(part["text"])
        yield self._event("response.output_item.done", output_index=len(self._items) - 1, item=item)

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._items[-1]["id"], "output_index": len(self._items) - 1}

    def _event(self, kind: str, **fields: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        return sse({"type": kind, "sequence_number": number, **fields}, kind)


def _id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(16)}"
