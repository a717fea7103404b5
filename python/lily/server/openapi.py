"""GET /openapi.json: the server's interface as an OpenAPI 3.1 document."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from lily._version import __version__
from lily.server.fields import Fields
from lily.server.json_text import JsonResponse
from lily.server.service import Service

__all__ = ["openapi"]

_TEXT: dict[str, Any] = {"type": "string"}
_COUNT: dict[str, Any] = {"type": "integer", "minimum": 1}
_LIMIT: dict[str, Any] = {"type": "integer", "anyOf": [{"minimum": 1}, {"const": -1}]}
_FLAG: dict[str, Any] = {"type": "boolean"}
_OBJECT: dict[str, Any] = {"type": "object"}
_OBJECTS: dict[str, Any] = {"type": "array", "items": _OBJECT}
_PARTS: dict[str, Any] = {"oneOf": [_TEXT, {"type": "array", "items": _OBJECT}]}
_STRINGS: dict[str, Any] = {"oneOf": [_TEXT, {"type": "array", "items": _TEXT, "maxItems": 16}]}
_IDS: dict[str, Any] = {"type": "array", "items": {"type": "integer", "minimum": 0}}
_SHARE: dict[str, Any] = {"type": "number", "minimum": 0, "maximum": 1}


async def openapi(service: Service, request: Request, fields: Fields) -> Response:
    """The document."""
    del request, fields
    keys: dict[str, Any] = {"security": [{"key": []}]} if service.options.api_keys else {}
    return JsonResponse(
        {
            "openapi": "3.1.0",
            "info": {"title": "Lily", "version": __version__},
            "paths": _paths(),
            "components": {"schemas": _errors(), "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
            **keys,
        }
    )


def _paths() -> dict[str, Any]:
    one_model = {"name": "name", "in": "path", "required": True, "schema": _TEXT}
    return {
        "/v1/chat/completions": _post("Answers a conversation.", _chat_body(), streams=True),
        "/v1/completions": _post("Continues prompts.", _completion_body(), streams=True),
        "/v1/responses": _post("Answers a conversation.", _responses_body(), streams=True),
        "/v1/responses/input_tokens": _post("Counts tokens.", _responses_body()),
        **_stored_responses(),
        "/v1/messages": _post("Answers a conversation.", _messages_body("max_tokens"), streams=True, error="Anthropic"),
        "/v1/messages/count_tokens": _post("Counts tokens.", _messages_body(), error="Anthropic"),
        "/tokenize": _post("Token ids of a text.", _body(["prompt"], prompt=_TEXT, parse_special=_FLAG)),
        "/detokenize": _post("Text of ids.", _body(["tokens"], tokens=_IDS)),
        "/v1/models": _get("Names of the model."),
        "/v1/models/{name}": {**_get("One name of the model."), "parameters": [one_model]},
        "/": _get("Whether the server is up."),
        "/health": _get("Whether the server is up."),
        "/metrics": _get("Counters.", "text/plain"),
    }


def _stored_responses() -> dict[str, Any]:
    """The paths of the responses that the server keeps."""
    path = "/v1/responses/{response_id}"
    named = {"parameters": [{"name": "response_id", "in": "path", "required": True, "schema": _TEXT}]}
    query = [
        {"name": "limit", "in": "query", "schema": {"type": "integer", "minimum": 1, "maximum": 100}},
        {"name": "order", "in": "query", "schema": {"enum": ["asc", "desc"]}},
        {"name": "after", "in": "query", "schema": _TEXT},
    ]
    deletion = {"delete": _get("Forgets a response.")["get"]}
    return {
        path: {**_get("A stored response."), **deletion, **named},
        f"{path}/input_items": {
            **_get("The input items of a stored response."),
            "parameters": [*named["parameters"], *query],
        },
        f"{path}/cancel": {**_post("Cancels nothing: stored responses are complete.", _OBJECT), **named},
    }


def _sampling() -> dict[str, Any]:
    penalty = {"type": "number", "minimum": -2, "maximum": 2}
    return {
        "temperature": {"type": "number", "minimum": 0},
        "top_p": _SHARE,
        "min_p": _SHARE,
        "top_k": {"type": "integer", "minimum": -1},
        "presence_penalty": penalty,
        "frequency_penalty": penalty,
        "repetition_penalty": {"type": "number", "minimum": 0.01, "maximum": 100},
        "stop_token_ids": _IDS,
        "logit_bias": {"type": "object", "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100}},
        "seed": {"type": "integer"},
    }


def _chat_body() -> dict[str, Any]:
    role = {"enum": ["system", "developer", "user", "assistant", "tool"]}
    fields = {
        "role": role,
        "content": _PARTS,
        "tool_calls": _OBJECTS,
        "tool_call_id": {"type": ["string", "null"]},
        "reasoning_content": _TEXT,
    }
    message = {"type": "object", "properties": fields, "required": ["role"]}
    return _body(
        ["messages"],
        model=_TEXT,
        messages={"type": "array", "items": message, "minItems": 1},
        tools=_OBJECTS,
        tool_choice={"oneOf": [_TEXT, _OBJECT]},
        parallel_tool_calls=_FLAG,
        response_format=_OBJECT,
        stream=_FLAG,
        stream_options=_OBJECT,
        max_tokens=_LIMIT,
        max_completion_tokens=_LIMIT,
        max_thinking_tokens={"type": "integer", "minimum": -1},
        n={"type": "integer", "minimum": 1, "maximum": 16},
        stop=_STRINGS,
        logprobs=_FLAG,
        top_logprobs={"type": "integer", "minimum": 0, "maximum": 20},
        reasoning_effort=_TEXT,
        enable_thinking=_FLAG,
        continue_final_message=_FLAG,
        chat_template_kwargs=_OBJECT,
        **_sampling(),
    )


def _completion_body() -> dict[str, Any]:
    prompts = {"type": "array", "items": {"oneOf": [_TEXT, _IDS]}, "minItems": 1, "maxItems": 64}
    return _body(
        ["prompt"],
        model=_TEXT,
        prompt={"anyOf": [_TEXT, _IDS, prompts]},
        max_tokens=_COUNT,
        n={"type": "integer", "minimum": 1, "maximum": 16},
        echo=_FLAG,
        stop=_STRINGS,
        stream=_FLAG,
        stream_options=_OBJECT,
        logprobs={"type": "integer", "minimum": 0, "maximum": 20},
        **_sampling(),
    )


def _responses_body() -> dict[str, Any]:
    return _body(
        [],
        model=_TEXT,
        input=_PARTS,
        previous_response_id={"type": ["string", "null"]},
        instructions=_TEXT,
        tools=_OBJECTS,
        tool_choice={"oneOf": [_TEXT, _OBJECT]},
        parallel_tool_calls=_FLAG,
        max_output_tokens=_COUNT,
        reasoning=_OBJECT,
        text=_OBJECT,
        include={"type": "array", "items": _TEXT},
        top_logprobs={"type": "integer", "minimum": 0, "maximum": 20},
        stream=_FLAG,
        store=_FLAG,
        metadata=_OBJECT,
        temperature={"type": "number", "minimum": 0},
        top_p=_SHARE,
    )


def _messages_body(*required: str) -> dict[str, Any]:
    fields = {"role": {"enum": ["user", "assistant", "system"]}, "content": _PARTS}
    message = {"type": "object", "properties": fields, "required": ["role", "content"]}
    limit = {"max_tokens": _COUNT, "stream": _FLAG, "stop_sequences": {"type": "array", "items": _TEXT}}
    return _body(
        ["messages", *required],
        model=_TEXT,
        messages={"type": "array", "items": message, "minItems": 1},
        system=_PARTS,
        tools=_OBJECTS,
        tool_choice=_OBJECT,
        thinking=_OBJECT,
        output_config=_OBJECT,
        temperature={"type": "number", "minimum": 0},
        top_p=_SHARE,
        top_k={"type": "integer", "minimum": 0},
        **(limit if required else {}),
    )


def _body(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required}


def _post(summary: str, body: dict[str, Any], *, streams: bool = False, error: str = "OpenAI") -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": _OBJECT}}
    if streams:
        content["text/event-stream"] = {}  # a schema of OpenAPI 3.1 cannot describe single events
    responses = {
        "200": {"description": "The answer.", "content": content},
        **{code: _error(text, error) for code, text in _STATUSES.items()},
    }
    request = {"required": True, "content": {"application/json": {"schema": body}}}
    return {"post": {"summary": summary, "requestBody": request, "responses": responses}}


def _get(summary: str, kind: str = "application/json") -> dict[str, Any]:
    content = {kind: {"schema": _OBJECT if kind == "application/json" else _TEXT}}
    responses = {"200": {"description": "The answer.", "content": content}}
    codes = ("400", "401", "403", "404")
    return {
        "get": {"summary": summary, "responses": responses | {one: _error(_STATUSES[one], "OpenAI") for one in codes}}
    }


_STATUSES = {
    "400": "The request is not valid; the error names the parameter.",
    "401": "The key is missing or wrong.",
    "403": "Requests from web pages of this origin are not allowed.",
    "404": "There is no such model or response.",
    "413": "The body is too long, or the prompt needs too much memory.",
    "429": "Too many requests are waiting.",
    "503": "The server is shutting down.",
}


def _error(text: str, shape: str) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{shape}Error"}
    return {"description": text, "content": {"application/json": {"schema": schema}}}


def _errors() -> dict[str, Any]:
    nullable = {"type": ["string", "null"]}
    openai = {"message": _TEXT, "type": _TEXT, "param": nullable, "code": nullable}
    anthropic = {"type": _TEXT, "message": _TEXT}
    return {
        "OpenAIError": _body(["error"], error=_body(list(openai), **openai)),
        "AnthropicError": _body(["type", "error"], type={"const": "error"}, error=_body(list(anthropic), **anthropic)),
    }
