"""One request in progress: its client, whether the client is still connected, and the memory charged to it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator

from starlette.requests import Request
from starlette.types import Receive

from lily.server.byte_budget import Charge

__all__ = ["Call", "call_of"]

_KEY = "lily.call"  # in the ASGI scope


class Call:
    """A request from its head to the end of its answer; it belongs to the event loop."""

    def __init__(self, request: Request, client: str, charge: Charge) -> None:
        self.client = client  #: for taking turns
        self.charge = charge
        self.left = False  #: whether the client has disconnected
        self._callbacks: list[Callable[[], None]] = []
        self._watching: asyncio.Task[None] | None = None
        request.scope[_KEY] = self

    def watch(self, receive: Receive) -> None:
        """Watch for the client to disconnect; the body must have been read."""
        self._watching = asyncio.create_task(self._watch(receive))

    @contextlib.contextmanager
    def when_left(self, callback: Callable[[], None]) -> Iterator[None]:
        """Call `callback` if the client disconnects within the block, or has done so before."""
        self._callbacks.append(callback)
        try:
            if self.left:
                callback()
            yield
        finally:
            self._callbacks.remove(callback)

    def end(self) -> None:
        """Release what the request holds."""
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None
        self.charge.release()

    async def _watch(self, receive: Receive) -> None:
        with contextlib.suppress(OSError):
            while (await receive())["type"] != "http.disconnect":
                pass
        self.left = True
        for callback in list(self._callbacks):
            callback()


def call_of(request: Request) -> Call:
    """The call that a request belongs to."""
    call: Call = request.scope[_KEY]
    return call
