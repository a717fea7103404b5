"""Closes the connection after an answer that did not wait for the request's body: further input could be part of it."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

__all__ = ["UnreadBody"]


class UnreadBody:
    """Passes the messages of one request on, and adds `Connection: close` if its body was not read to the end."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        self._left = "transfer-encoding" in headers or headers.get("content-length", "0").strip() != "0"
        self._receive = receive
        self._send = send

    async def receive(self) -> Message:
        """The next message of the client."""
        message = await self._receive()
        if message["type"] == "http.request" and not message.get("more_body", False):
            self._left = False
        return message

    async def send(self, message: Message) -> None:
        """Send a message of the answer."""
        if self._left and message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
        await self._send(message)
