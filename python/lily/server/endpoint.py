"""What happens around every endpoint: keys, origins, the body, errors in the API's shape, the count of requests."""

from __future__ import annotations

import functools
import hmac
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from lily.server.desktop_origins import is_desktop_origin
from lily.server.errors import ApiError, anthropic_body, as_api_error, openai_body
from lily.server.fields import Fields
from lily.server.json_text import JsonResponse, load_json
from lily.server.service import Service

__all__ = ["CLIENT_GONE", "Endpoint", "Handler", "LongResponse", "client_of", "error_response"]

Handler = Callable[[Service, Request, Fields], Awaitable[Response]]
CLIENT_GONE = 499  # the status that metrics count for a request whose client did not wait


class LongResponse(Response):
    """A response that may fail after it has begun; it calls `when_finished` with the status that it ended in."""

    def when_finished(self, status: int) -> None:
        """Replaced by whoever wants to know."""


class Endpoint:
    """A handler as Starlette calls it."""

    def __init__(
        self, service: Service, handler: Handler, name: str, *, anthropic: bool = False, open_to_all: bool = False
    ) -> None:
        self._service = service
        self._handler = handler
        self._name = name
        self._anthropic = anthropic
        self._open_to_all = open_to_all

    async def handle(self, request: Request) -> Response:
        """Answer a request, whatever happens."""
        try:
            check_origin(request, self._service)
            if not self._open_to_all:
                check_key(request, self._service)
            body = await read_body(request, self._service) if request.method == "POST" else {}
            response = await self._handler(self._service, request, Fields(body))
        except ClientDisconnect:
            response = Response(status_code=CLIENT_GONE)
        except Exception as error:  # every failure has an answer in the API's shape
            response = error_response(as_api_error(error), anthropic=self._anthropic)
        count = functools.partial(self._service.metrics.count_request, self._name)
        if isinstance(response, LongResponse):
            response.when_finished = count  # type: ignore[method-assign]
        else:
            count(response.status_code)
        return response


def error_response(error: ApiError, *, anthropic: bool = False) -> JsonResponse:
    """An error as a response."""
    body = anthropic_body(error) if anthropic else openai_body(error)
    return JsonResponse(body, status_code=error.status, headers=error.headers)


def check_key(request: Request, service: Service) -> None:
    """ApiError unless the request brings one of the keys; the comparisons take the same time for any key."""
    keys = service.options.api_keys
    if not keys:
        return
    given = _given_key(request).encode()
    matches = [hmac.compare_digest(given, key.encode()) for key in keys]
    if not any(matches):
        raise ApiError(401, "Incorrect or missing API key.", code="invalid_api_key")


def check_origin(request: Request, service: Service) -> None:
    """ApiError for requests that a web page makes, unless its origin is allowed."""
    origin = request.headers.get("origin")
    allowed = service.options.cors_origins
    if origin is None or origin in allowed or "*" in allowed:
        return
    if not is_desktop_origin(origin):
        raise ApiError(403, "requests from web pages of this origin are not allowed (option --cors-origin)")
    if not service.options.allow_desktop:
        shown = origin[:100].encode("ascii", "replace").decode()
        raise ApiError(403, f"requests of desktop applications ({shown}) are not allowed (option --allow-desktop)")


def client_of(request: Request) -> str:
    """Who asks, for taking turns: the key, else the address."""
    return _given_key(request) or ("" if request.client is None else request.client.host)


async def read_body(request: Request, service: Service) -> Any:
    """The body's JSON value; ApiError if it is too long or no JSON."""
    most = service.options.max_request_bytes
    too_long = ApiError(413, f"the request's body exceeds {most} bytes", code="request_too_large")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > most:
        raise too_long
    parts = bytearray()
    async for part in request.stream():
        parts += part
        if len(parts) > most:
            raise too_long
    if not parts:
        return {}
    try:
        return await run_in_threadpool(load_json, bytes(parts))
    except (ValueError, RecursionError):
        raise ApiError(400, "the request's body is not valid JSON", code="invalid_json") from None


def _given_key(request: Request) -> str:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
