"""Reads the body of a request, within limits of size, time and memory."""

from __future__ import annotations

import asyncio
import sys
import time

from starlette.datastructures import Headers
from starlette.types import Receive

from lily.server.byte_budget import Charge
from lily.server.errors import ApiError
from lily.server.options import ServerOptions

__all__ = ["ClientLeftError", "read_body"]

_LEAST_RATE = 1 << 16  # bytes a second that a long body must sustain
_LONGEST_LENGTH = 18  # digits


class ClientLeftError(Exception):
    """The client disconnected before its request was complete."""


async def read_body(receive: Receive, headers: Headers, charge: Charge, options: ServerOptions) -> bytearray:
    """The whole body; its bytes are charged as they arrive.

    Raises
    ------
    ApiError
        408: it does not arrive in time. 413: it is too long. 415: it is compressed. 503: other requests use the memory.
    ClientLeftError
        The client has disconnected.
    """
    most = options.max_request_bytes
    too_long = ApiError(413, f"the request's body exceeds {most} bytes", code="request_too_large")
    if headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise ApiError(415, "the request's body is compressed; send it uncompressed", code="unsupported_encoding")
    length = headers.get("content-length", "")
    if length.isdecimal() and (len(length) > _LONGEST_LENGTH or int(length) > most):
        raise too_long
    body = bytearray()
    began = time.monotonic()
    while True:
        end = began + options.body_seconds + len(body) / _LEAST_RATE
        with _Deadline(min(options.body_seconds, end - time.monotonic())):
            message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeftError
        part = message.get("body", b"")
        if len(body) + len(part) > most:
            raise too_long
        if part:
            charge.resize(len(body) + len(part))
            body += part
        if not message.get("more_body", False):
            return body


class _Deadline:
    """ApiError if the block takes too long. `asyncio.wait_for` makes a task for each call in older Pythons."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._task = asyncio.current_task()
        self._expired = False

    def __enter__(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._expire)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._timer.cancel()
        if self._expired and kind is asyncio.CancelledError:
            if sys.version_info >= (3, 11) and self._task is not None:
                self._task.uncancel()
            raise ApiError(408, "the request's body did not arrive in time", code="request_timeout") from None

    def _expire(self) -> None:
        self._expired = True
        if self._task is not None:
            self._task.cancel()
