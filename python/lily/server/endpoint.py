"""What happens around every endpoint: keys, the body, errors in the API's shape, the count of requests."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lily.server.body import ClientLeftError, read_body
from lily.server.byte_budget import Charge, parsed_bytes
from lily.server.call import Call
from lily.server.errors import ApiError, as_api_error, without_frames
from lily.server.fields import Fields
from lily.server.gate import check_key, client_of
from lily.server.json_text import load_json
from lily.server.refusal import error_response
from lily.server.service import Service

__all__ = ["CLIENT_GONE", "Endpoint", "Handler", "LongResponse"]

Handler = Callable[[Service, Request, Fields], Awaitable[Response]]
CLIENT_GONE = 499  # status counted for a request whose client disconnected
_PARSED_AT_ONCE = 1 << 14  # bytes: a fraction of a millisecond


class LongResponse(Response):
    """A response that may fail after it has begun; `outcome` is the status that it ended in."""

    outcome = CLIENT_GONE


class Endpoint:
    """A handler as an ASGI application."""

    def __init__(
        self, service: Service, handler: Handler, name: str, *, anthropic: bool = False, open_to_all: bool = False
    ) -> None:
        self._service = service
        self._handler = handler
        self._name = name
        self._anthropic = anthropic
        self._open_to_all = open_to_all

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, whatever happens."""
        request = Request(scope, receive, send)
        service = self._service
        call = Call(request, client_of(request, service.options), Charge(service.budget))
        try:
            response = await self._response(request, call)
            if isinstance(response, LongResponse):
                try:
                    await response(scope, receive, send)
                finally:
                    service.metrics.count_request(self._name, response.outcome)
            else:
                service.metrics.count_request(self._name, response.status_code)
                with contextlib.suppress(
                    OSError, asyncio.CancelledError
                ):  # the client has disconnected, or the server ends
                    await response(scope, receive, send)
        finally:
            call.end()
            service.freed_memory.ended(call.charge.largest)

    async def _response(self, request: Request, call: Call) -> Response:
        try:
            if not self._open_to_all:
                check_key(request, self._service.options)
            body: Any = {}
            if request.method == "POST":
                body = await self._body(request, call)
            return await self._handler(self._service, request, Fields(body))
        except asyncio.CancelledError:  # the server's time to shut down is over
            error = ApiError(503, "the server is shutting down", code="unavailable", retry_after=5)
        except Exception as raised:  # every failure is answered in the API's shape
            self._service.note(raised)
            gone = call.left or isinstance(raised, ClientLeftError)
            error = ApiError(CLIENT_GONE, "the client has disconnected") if gone else as_api_error(raised)
            without_frames(raised)
        return error_response(error, anthropic=self._anthropic)

    async def _body(self, request: Request, call: Call) -> Any:
        """The body's JSON value; the client is watched from here on."""
        data = await read_body(request.receive, request.headers, call.charge, self._service.options)
        call.watch(request.receive)
        if not data:
            return {}
        try:
            if len(data) <= _PARSED_AT_ONCE:
                return _parsed(data, call.charge, lambda: None)
            return await self._service.preparation.run(call, functools.partial(_parsed, data, call.charge))
        except (ValueError, RecursionError):
            raise ApiError(400, "the request's body is not valid JSON", code="invalid_json") from None
        except MemoryError:
            raise ApiError(503, "there is no memory for the request", code="overloaded", retry_after=5) from None


def _parsed(data: bytearray, charge: Charge, check: Callable[[], None]) -> Any:
    size = parsed_bytes(data)
    charge.resize(len(data) + size)
    value = load_json(data, check)
    charge.resize(size)
    return value
