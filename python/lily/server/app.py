"""The ASGI application: routes, and what happens at start and end."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lily.server import chat_completions, completions, messages, openapi, responses, small_endpoints
from lily.server.endpoint import Endpoint
from lily.server.errors import ApiError
from lily.server.gate import Gate
from lily.server.options import ServerOptions
from lily.server.refusal import error_response
from lily.server.service import Service

if TYPE_CHECKING:
    from lily.model import Model

__all__ = ["create_app"]


def create_app(model: Model, options: ServerOptions | None = None) -> Starlette:
    """An ASGI application that serves a model.

    Parameters
    ----------
    model
        The model; it stays the caller's, who closes it after the application.
    options
        See `ServerOptions`.

    Raises
    ------
    TokenizerError, TemplateError
        The checkpoint has no tokenizer or chat template.
    """
    options = options or ServerOptions()
    _ = model.tokenizer, model.chat_template  # missing files are told now and not to a client
    service = Service(model, options)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await _in_thread(functools.partial(service.close, options.last_step_seconds))

    cors = Middleware(
        CORSMiddleware, allow_origins=list(options.cors_origins), allow_methods=["*"], allow_headers=["*"]
    )
    app = Starlette(
        routes=_routes(service),
        lifespan=lifespan,
        middleware=[Middleware(Gate, options=options), *([cors] if options.cors_origins else [])],
        exception_handlers={HTTPException: _no_such_route},
    )
    app.router.redirect_slashes = False  # the redirection would name the host of the request
    app.state.service = service
    return app


def _routes(service: Service) -> list[Route]:
    def post(path: str, endpoint: Endpoint) -> Route:
        return Route(path, endpoint, methods=["POST"])

    def get(path: str, endpoint: Endpoint) -> Route:
        return Route(path, endpoint, methods=["GET"])

    return [
        post("/v1/messages", Endpoint(service, messages.messages, "messages", anthropic=True)),
        post("/v1/messages/count_tokens", Endpoint(service, messages.count_tokens, "count_tokens", anthropic=True)),
        post("/v1/chat/completions", Endpoint(service, chat_completions.chat_completions, "chat_completions")),
        post("/v1/completions", Endpoint(service, completions.completions, "completions")),
        post("/v1/responses", Endpoint(service, responses.responses, "responses")),
        get("/v1/models", Endpoint(service, small_endpoints.models, "models")),
        get("/v1/models/{name:path}", Endpoint(service, small_endpoints.model, "models")),
        get("/openapi.json", Endpoint(service, openapi.openapi, "openapi")),
        get("/health", Endpoint(service, small_endpoints.health, "health", open_to_all=True)),
        get("/metrics", Endpoint(service, small_endpoints.metrics, "metrics")),
        post("/tokenize", Endpoint(service, small_endpoints.tokenize, "tokenize")),
        post("/detokenize", Endpoint(service, small_endpoints.detokenize, "detokenize")),
    ]


async def _no_such_route(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    what = f"Method {request.method[:20]} is not allowed here." if status == 405 else "There is no such endpoint."
    anthropic = request.scope["path"].startswith("/v1/messages")
    return error_response(ApiError(status, what, code="not_found" if status == 404 else None), anthropic=anthropic)


async def _in_thread(function: Callable[[], None]) -> None:
    """Call a function that waits; its thread keeps no process alive."""
    loop = asyncio.get_running_loop()
    done = asyncio.Event()

    def call() -> None:
        function()
        loop.call_soon_threadsafe(done.set)

    threading.Thread(target=call, name="lily-shutdown", daemon=True).start()
    await done.wait()
