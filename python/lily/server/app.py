"""The ASGI application: routes, and what happens at start and end."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import AsyncIterator, Callable, Collection

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lily.errors import InvalidArgumentError
from lily.model import Model
from lily.server import chat_completions, completions, messages, openapi, responses, small_endpoints
from lily.server.desktop_origins import DESKTOP_ORIGINS
from lily.server.endpoint import Endpoint, Handler
from lily.server.errors import ApiError
from lily.server.gate import Gate
from lily.server.options import ServerOptions, checked_options
from lily.server.paths import KnownPaths, hint_for
from lily.server.refusal import error_response
from lily.server.request_warnings import HEADER
from lily.server.service import Service

__all__ = ["create_app"]


def create_app(model: Model, options: ServerOptions | None = None) -> Starlette:
    """An ASGI application that serves a model.

    Parameters
    ----------
    model
        The model. The caller keeps it, and closes it after the application has ended.
    options
        See `ServerOptions`.

    Raises
    ------
    TokenizerError, TemplateError
        The checkpoint has no tokenizer or chat template.
    InvalidArgumentError
        `model` is not a model, or `options` are not options.
    """
    if not isinstance(model, Model):
        raise InvalidArgumentError(f"model must be a lily.Model, not a {type(model).__name__}")
    options = checked_options(options)
    _ = model.tokenizer, model.chat_template  # missing files are reported now, not to a client
    service = Service(model, options)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await _in_thread(functools.partial(service.close, options.last_step_seconds))

    cors = Middleware(
        CORSMiddleware,
        allow_origins=list(options.cors_origins),
        allow_origin_regex=DESKTOP_ORIGINS if options.allow_desktop else None,
        allow_methods=["*"],
        allow_headers=["*"],
        expose_headers=[HEADER],
    )
    outermost = [Middleware(Gate, options=options), Middleware(KnownPaths)]
    routes = _routes(service)
    paths = [route.path for route in routes]

    async def no_such_route(request: Request, error: Exception) -> Response:
        return _no_such_route(request, error, paths)

    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        middleware=[*outermost, cors] if options.cors_origins or options.allow_desktop else outermost,
        exception_handlers={HTTPException: no_such_route},
    )
    app.router.redirect_slashes = False  # the redirect would contain the request's host
    app.state.service = service
    return app


def _routes(service: Service) -> list[Route]:
    def post(path: str, endpoint: Endpoint) -> Route:
        return Route(path, endpoint, methods=["POST"])

    def get(path: str, endpoint: Endpoint) -> Route:
        return Route(path, endpoint, methods=["GET"])

    return [
        post("/v1/messages", Endpoint(service, messages.messages, "messages", anthropic=True)),
        Route("/v1/messages", Endpoint(service, small_endpoints.nothing, "messages"), methods=["HEAD"]),
        post("/v1/messages/count_tokens", Endpoint(service, messages.count_tokens, "count_tokens", anthropic=True)),
        post("/v1/chat/completions", Endpoint(service, chat_completions.chat_completions, "chat_completions")),
        post("/v1/completions", Endpoint(service, completions.completions, "completions")),
        post("/v1/responses", Endpoint(service, responses.responses, "responses")),
        post("/v1/responses/input_tokens", Endpoint(service, responses.count_input_tokens, "input_tokens")),
        *_stored(service),
        get("/v1/models", Endpoint(service, small_endpoints.models, "models")),
        get("/v1/models/{name:path}", Endpoint(service, small_endpoints.model, "models")),
        get("/openapi.json", Endpoint(service, openapi.openapi, "openapi")),
        get("/", Endpoint(service, small_endpoints.health, "health", open_to_all=True)),
        get("/health", Endpoint(service, small_endpoints.health, "health", open_to_all=True)),
        get("/metrics", Endpoint(service, small_endpoints.metrics, "metrics")),
        post("/tokenize", Endpoint(service, small_endpoints.tokenize, "tokenize")),
        post("/detokenize", Endpoint(service, small_endpoints.detokenize, "detokenize")),
    ]


def _stored(service: Service) -> list[Route]:
    """The responses that the server keeps."""
    path = "/v1/responses/{response_id}"

    def route(method: str, suffix: str, handler: Handler) -> Route:
        return Route(path + suffix, Endpoint(service, handler, "stored_responses"), methods=[method])

    return [
        route("GET", "", responses.stored_response),
        route("DELETE", "", responses.delete_response),
        route("GET", "/input_items", responses.list_input_items),
        route("POST", "/cancel", responses.cancel_response),
    ]


def _no_such_route(request: Request, error: Exception, known: Collection[str]) -> Response:
    path: str = request.scope["path"]
    status = error.status_code if isinstance(error, HTTPException) else 500
    what = f"There is no such endpoint. {hint_for(path, known)}"
    if status == 405:
        what = f"Method {request.method[:20]} is not allowed here."
    anthropic = path.startswith("/v1/messages")
    return error_response(ApiError(status, what, code="not_found" if status == 404 else None), anthropic=anthropic)


async def _in_thread(function: Callable[[], None]) -> None:
    """Call a function that blocks, in a thread that does not keep the process alive."""
    loop = asyncio.get_running_loop()
    done = asyncio.Event()

    def call() -> None:
        function()
        loop.call_soon_threadsafe(done.set)

    threading.Thread(target=call, name="lily-shutdown", daemon=True).start()
    await done.wait()
