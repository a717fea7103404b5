"""A transport that can close in two steps, so that a client that is still sending gets to read its answer.

A socket that is closed while data comes in is reset, and the client's system may drop the answer that it has received.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

__all__ = ["LingeringTransport"]


class LingeringTransport:
    """A transport of asyncio; everything but what is here is passed on to it.

    It closes in two steps if `still_sends` says that the client may send on: it drops what comes until the client
    closes, for so many bytes and seconds at most.
    """

    def __init__(
        self, transport: asyncio.Transport, still_sends: Callable[[], bool], most_bytes: int, seconds: float
    ) -> None:
        self._transport = transport
        self._still_sends = still_sends
        self._most_bytes = most_bytes
        self._seconds = seconds
        self._left: int | None = None  # bytes that are still read and dropped
        self._timer: asyncio.TimerHandle | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    @property
    def lingers(self) -> bool:
        """Whether the answer is sent, and the rest of what the client sends is dropped."""
        return self._left is not None

    def is_closing(self) -> bool:
        """Whether nothing more is written."""
        return self.lingers or self._transport.is_closing()

    def close(self) -> None:
        """Write what is waiting, and close, perhaps in two steps."""
        if self.is_closing():
            return
        if not self._still_sends():
            self._transport.close()
            return
        try:
            self._transport.write_eof()
            self._transport.resume_reading()
        except (OSError, RuntimeError, NotImplementedError):  # the client has disconnected; TLS has no such end
            self._transport.close()
            return
        self._left = self._most_bytes
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._transport.close)

    def drop(self, size: int) -> None:
        """Count bytes that came while it lingers."""
        if self._left is not None:
            self._left -= size
            if self._left < 0:
                self._transport.close()

    def end(self) -> None:
        """Linger no longer."""
        if self._timer is not None:
            self._timer.cancel()
        self._transport.close()
