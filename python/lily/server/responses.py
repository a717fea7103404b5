"""OpenAI's Responses API: POST /v1/responses, and stored responses."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from lily.chat.options import resolve_sampling
from lily.server.call import call_of
from lily.server.chat_completions import stream_options
from lily.server.delivery import collect_answers, start_stream
from lily.server.engine import Work
from lily.server.errors import ApiError
from lily.server.fields import Fields
from lily.server.json_text import JsonResponse, dump_json
from lily.server.responses_format import ResponseFormat
from lily.server.responses_history import as_item
from lily.server.responses_request import WITH_SEALED_REASONING, input_items, responses_chat_request
from lily.server.service import Service
from lily.server.steps import Steps
from lily.server.tool_definitions import RequestTools
from lily.server.turns import ChatRequest, chat_work, prompt_length

__all__ = [
    "cancel_response",
    "count_input_tokens",
    "delete_response",
    "list_input_items",
    "responses",
    "stored_response",
]

_ECHOED = (
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "metadata",
    "parallel_tool_calls",
    "previous_response_id",
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
_MOST_LISTED = 100


async def responses(service: Service, request: Request, fields: Fields) -> Response:
    """Answer a conversation, at once or as a stream."""
    owner = _owner(service, request)
    prepared = await service.prepare(request, _prepared, service, fields, owner)

    def keep(response: dict[str, Any]) -> None:
        if prepared.head["store"]:
            service.responses.put(response, prepared.items, owner, prepared.size, prepared.before)

    form = ResponseFormat(
        prepared.head, prepared.tools, fields.warnings, keep, seal_reasoning=prepared.with_sealed_reasoning
    )
    if prepared.stream:
        return fields.warnings.put_into(await start_stream(service, request, prepared.work, form))
    replies, ticket = await collect_answers(service, request, prepared.work, 1)
    # The same items as those of a stream.
    for event in replies[0].events:
        for _ in form.event(0, event):
            pass
    return fields.warnings.put_into(JsonResponse(form.response(ticket.queue_seconds)))


@dataclass(frozen=True)
class _Prepared:
    work: Work
    stream: bool
    head: dict[str, Any]
    tools: RequestTools
    with_sealed_reasoning: bool
    items: list[dict[str, Any]]  # of the input, to be kept
    size: int  # their bytes
    before: list[Mapping[str, Any]]  # the items of the responses before


def _prepared(steps: Steps, service: Service, fields: Fields, owner: str) -> _Prepared:
    name = service.model_name(fields)
    wanted = responses_chat_request(service, fields, service.responses, owner, steps)
    stream = fields.flag("stream", False)
    stream_options(service, fields, stream)
    head = _head(service, name, fields, wanted)
    include = fields.items("include") or []
    service.finish_fields(fields)
    items = _kept_items(service, fields, owner) if head["store"] else []
    previous = fields.text("previous_response_id") if head["store"] else None
    return _Prepared(
        work=chat_work(service.model, wanted, steps, call_deltas=True),
        stream=stream,
        head=head,
        tools=wanted.tools_of_client or RequestTools(fields.warnings, strict=False),
        with_sealed_reasoning=WITH_SEALED_REASONING in include,
        items=items,
        size=len(dump_json(items)),
        before=service.responses.conversation(previous, owner) if previous else [],
    )


async def count_input_tokens(service: Service, request: Request, fields: Fields) -> Response:
    """POST /v1/responses/input_tokens: the tokens of the prompt that a request makes."""

    def counted(steps: Steps) -> int:
        service.model_name(fields)
        wanted = responses_chat_request(service, fields, service.responses, _owner(service, request), steps)
        fields.ignore("stream", "stream_options", "include")
        service.finish_fields(fields)
        return prompt_length(service.model, wanted, steps)

    count = await service.prepare(request, counted)
    body = {"object": "response.input_tokens", "input_tokens": count, **fields.warnings.body()}
    return fields.warnings.put_into(JsonResponse(body))


async def stored_response(service: Service, request: Request, fields: Fields) -> Response:
    """GET /v1/responses/ID."""
    del fields
    if request.query_params.get("stream") == "true":
        raise ApiError(400, "a stored response is complete; it cannot be streamed again", param="stream")
    stored = service.responses.get(request.path_params["response_id"], _owner(service, request))
    return JsonResponse(stored.body)


async def delete_response(service: Service, request: Request, fields: Fields) -> Response:
    """DELETE /v1/responses/ID."""
    del fields
    name = request.path_params["response_id"]
    service.responses.remove(name, _owner(service, request))
    return JsonResponse({"id": name, "object": "response", "deleted": True})


async def cancel_response(service: Service, request: Request, fields: Fields) -> Response:
    """POST /v1/responses/ID/cancel: there is nothing to cancel, because every stored response is complete."""
    del fields
    service.responses.get(request.path_params["response_id"], _owner(service, request))
    raise ApiError(
        400, "Only background responses can be cancelled; to end another one, close its stream.", code="invalid"
    )


async def list_input_items(service: Service, request: Request, fields: Fields) -> Response:
    """GET /v1/responses/ID/input_items."""
    del fields
    stored = service.responses.get(request.path_params["response_id"], _owner(service, request))
    query = request.query_params
    items = list(stored.items)
    if query.get("order", "desc") != "asc":
        items.reverse()
    after = query.get("after")
    if after is not None:
        place = next((at for at, item in enumerate(items) if item.get("id") == after), None)
        if place is None:
            raise ApiError(400, f"there is no item with the id '{after[:80]}'", param="after", code="invalid_value")
        items = items[place + 1 :]
    given = query.get("limit", "20")
    limit = int(given) if given.isascii() and given.isdecimal() and len(given) < 9 else 0
    if not 1 <= limit <= _MOST_LISTED:
        raise ApiError(400, f"limit must be from 1 to {_MOST_LISTED}", param="limit", code="invalid_value")
    shown = items[:limit]
    ends = {"first_id": shown[0]["id"], "last_id": shown[-1]["id"]} if shown else {"first_id": None, "last_id": None}
    return JsonResponse({"object": "list", "data": shown, **ends, "has_more": len(items) > limit})


def _owner(service: Service, request: Request) -> str:
    """Who may see a response: the owner of the key; without keys, everyone who knows its id."""
    return call_of(request).client if service.options.api_keys else ""


def _kept_items(service: Service, fields: Fields, owner: str) -> list[dict[str, Any]]:
    """The items of the input as they are stored and listed, with references replaced by the items."""
    kept = []
    for item in map(as_item, input_items(fields)):
        name = None if item is None else item.get("id")
        if item is None or item["type"] != "item_reference":
            found = item
        else:
            found = service.responses.item(name, owner) if isinstance(name, str) else None
        if found is not None:
            kept.append(_listed(found))
    return kept


def _listed(item: Mapping[str, Any]) -> dict[str, Any]:
    """An item with an id, whose content is a list."""
    kind, name = item["type"], item.get("id")
    listed = {**item, "id": name if isinstance(name, str) and name else f"in_{secrets.token_hex(16)}"}
    if kind == "message" and isinstance(item.get("content"), str):
        part = "output_text" if item.get("role") == "assistant" else "input_text"
        listed["content"] = [{"type": part, "text": item["content"]}]
    return listed


def _head(service: Service, name: str, fields: Fields, wanted: ChatRequest) -> dict[str, Any]:
    sampling = resolve_sampling(service.model, wanted.options.sampling)
    echoed = {key: fields.any(key, _ECHO_DEFAULTS.get(key)) for key in _ECHOED}
    return {
        "id": f"resp_{secrets.token_hex(16)}",
        "object": "response",
        "created_at": int(time.time()),
        "model": name,
        **echoed,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "background": False,
        "store": fields.flag("store", True),
        "truncation": "disabled",
    }
