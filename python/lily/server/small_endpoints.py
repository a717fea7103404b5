"""The endpoints that compute nothing: models, health, metrics, tokenize and detokenize."""

from __future__ import annotations

import datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from lily._version import __version__
from lily.server.errors import ApiError
from lily.server.fields import Fields
from lily.server.json_text import JsonResponse, dump_json
from lily.server.service import Service
from lily.server.steps import Steps
from lily.server.work_limits import encoding_bytes

__all__ = ["detokenize", "health", "metrics", "model", "models", "nothing", "tokenize"]

_MOST_BYTES = 1 << 20  # of a text to encode: a second or less
_ID_BYTES = 48  # of an id, with its text in the answer
_MOST_TOKENS = 1 << 20
_SMALL = 1 << 16  # bytes of a text whose memory is not worth counting
_AT_ONCE = 1 << 14  # ids


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
    """HEAD of an existing endpoint; some clients test the connection with it."""
    del service, request, fields
    return Response()


async def health(service: Service, request: Request, fields: Fields) -> Response:
    """GET /health."""
    del request, fields
    engine = service.engine
    if service.broken:
        raise ApiError(503, "the model's files have changed; restart the server", code="unavailable")
    return JsonResponse({"status": "ok", "version": __version__, "running": engine.running, "waiting": engine.waiting})


async def metrics(service: Service, request: Request, fields: Fields) -> Response:
    """GET /metrics."""
    del request, fields
    return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


async def tokenize(service: Service, request: Request, fields: Fields) -> Response:
    """POST /tokenize: the ids of a text."""
    return await service.prepare(request, _tokenize, service, fields)


async def detokenize(service: Service, request: Request, fields: Fields) -> Response:
    """POST /detokenize: the text of ids."""
    return await service.prepare(request, _detokenize, service, fields)


def _tokenize(steps: Steps, service: Service, fields: Fields) -> Response:
    service.model_name(fields)
    name = "content" if fields.any("prompt") is None else "prompt"
    text = fields.text(name)
    if text is None:
        text = str(fields.required("prompt"))
    special = fields.flag("parse_special", True)
    service.finish_fields(fields)
    size = len(text.encode("utf-8", "replace"))
    if size > _MOST_BYTES:
        message = f"{name} has {size} bytes; send texts of more than {_MOST_BYTES} in parts"
        raise ApiError(413, message, param=name, code="request_too_large")
    tokenizer = service.model.tokenizer
    if size > _SMALL:
        steps.take(_ID_BYTES * size + encoding_bytes(tokenizer, text))
    ids = tokenizer.encode(text, parse_special=special, check=steps.check)
    rest = dump_json({"count": len(ids), "max_model_len": service.model.max_context})
    # In parts, so that other threads run in between.
    parts = [dump_json(ids[start : start + _AT_ONCE])[1:-1] for start in range(0, len(ids), _AT_ONCE)]
    return Response(b'{"tokens":[' + b",".join(parts) + b"]," + rest[1:], media_type="application/json")


def _detokenize(steps: Steps, service: Service, fields: Fields) -> Response:
    del steps
    service.model_name(fields)
    fields.required("tokens")
    tokens = fields.items("tokens") or []
    if len(tokens) > _MOST_TOKENS:
        message = f"tokens has {len(tokens)} ids; send more than {_MOST_TOKENS} in parts"
        raise ApiError(413, message, param="tokens", code="request_too_large")
    vocabulary = service.model.sampled_vocab_size
    for token in tokens:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocabulary:
            raise fields.wrong("tokens", f"a list of token ids below {vocabulary}", token)
    service.finish_fields(fields)
    text = service.model.tokenizer.decode(tokens)
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
