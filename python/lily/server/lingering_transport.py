"""A transport that can close in two steps, so that a client that is still sending can read its answer.

If a socket is closed while data arrives, the connection is reset, and the client's system may discard the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

__all__ = ["LingeringTransport"]


class LingeringTransport:
    """Wraps an asyncio transport and passes everything else on to it.

    It closes in two steps if `still_sends` says that the client may still be sending: it drops what arrives until the
    client closes, up to a number of bytes and seconds.
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
        """Whether the answer has been sent and all further input is dropped."""
        return self._left is not None

    def is_closing(self) -> bool:
        """Whether nothing more is written."""
        return self.lingers or self._transport.is_closing()

    def close(self) -> None:
        """Write what is buffered, then close, in two steps if necessary."""
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
        """Count bytes that arrived while lingering."""
        if self._left is not None:
            self._left -= size
            if self._left < 0:
                self._transport.close()

    def end(self) -> None:
        """Stop lingering."""
        if self._timer is not None:
            self._timer.cancel()
        self._transport.close()
