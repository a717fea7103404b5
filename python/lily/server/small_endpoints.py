"""The endpoints that compute nothing: models, health, metrics, tokenize and detokenize."""

from __future__ import annotations

import datetime
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from lily._version import __version__
from lily.server.errors import ApiError
from lily.server.fields import Fields
from lily.server.json_text import JsonResponse
from lily.server.service import Service

__all__ = ["detokenize", "health", "metrics", "model", "models", "nothing", "tokenize"]


async def models(service: Service, request: Request, fields: Fields) -> Response:
    """GET /v1/models."""
    del fields
    if _is_anthropic(request):
        ends = {"first_id": service.names[0], "last_id": service.names[-1], "has_more": False}
        return JsonResponse({"data": [_anthropic_model(service, name) for name in service.names], **ends})
    return JsonResponse({"object": "list", "data": [_model(service, name) for name in service.names]})


async def model(service: Service, request: Request, fields: Fields) -> Response:
    """GET /v1/models/NAME."""
    del fields
    name = request.path_params["name"]
    if name not in service.names and not service.options.any_model:
        raise ApiError(404, f"The model '{name[:200]}' does not exist.", param="model", code="model_not_found")
    return JsonResponse(_anthropic_model(service, name) if _is_anthropic(request) else _model(service, name))


async def nothing(service: Service, request: Request, fields: Fields) -> Response:
    """HEAD of an endpoint that is there, by which some clients see whether they can connect."""
    del service, request, fields
    return Response()


async def health(service: Service, request: Request, fields: Fields) -> Response:
    """GET /health."""
    del request, fields
    engine = service.engine
    return JsonResponse({"status": "ok", "version": __version__, "running": engine.running, "waiting": engine.waiting})


async def metrics(service: Service, request: Request, fields: Fields) -> Response:
    """GET /metrics."""
    del request, fields
    return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


async def tokenize(service: Service, request: Request, fields: Fields) -> Response:
    """POST /tokenize: the ids of a text."""
    del request
    service.model_name(fields)
    text = fields.text("content") if fields.any("prompt") is None else fields.text("prompt")
    if text is None:
        fields.required("prompt")
    special = fields.flag("parse_special", True)
    service.finish_fields(fields)
    ids = await run_in_threadpool(service.model.tokenizer.encode, text or "", parse_special=special)
    return JsonResponse({"tokens": ids, "count": len(ids), "max_model_len": service.model.max_context})


async def detokenize(service: Service, request: Request, fields: Fields) -> Response:
    """POST /detokenize: the text of ids."""
    del request
    service.model_name(fields)
    fields.required("tokens")
    tokens = fields.items("tokens") or []
    vocabulary = service.model.sampled_vocab_size
    for token in tokens:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocabulary:
            raise fields.wrong("tokens", f"a list of token ids below {vocabulary}", token)
    service.finish_fields(fields)
    text = await run_in_threadpool(service.model.tokenizer.decode, tokens)
    return JsonResponse({"prompt": text, "content": text})


def _is_anthropic(request: Request) -> bool:
    return "anthropic-version" in request.headers


def _anthropic_model(service: Service, name: str) -> dict[str, Any]:
    created = datetime.datetime.fromtimestamp(service.started, datetime.timezone.utc)
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "max_input_tokens": service.model.max_context,
        "max_tokens": service.model.max_context,
    }


def _model(service: Service, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": service.started,
        "owned_by": "lily",
        "max_model_len": service.model.max_context,
    }
