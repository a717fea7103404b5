"""Connection limits: their number, and how long a client may take to send a request or to read its answer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from lily.server.lingering_transport import LingeringTransport
from lily.server.unsent_bytes import unsent_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lily.server.options import ServerOptions

__all__ = ["BoundedProtocol", "ConnectionLimits"]

_MOST_PIPELINED = 1 << 16  # bytes received beyond a request that is not answered yet
_MOST_LINGERING = 32  # connections that linger, dropping input
_LINGERING_BODIES = 4  # share of the longest body that is dropped before the connection is reset
_REFUSED = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n"
_LATE = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class ConnectionLimits:
    """The limits of one server; looks through its connections now and then."""

    def __init__(self, options: ServerOptions, most: int) -> None:
        self.options = options
        self._most = most
        self._period = min(1.0, min(options.head_seconds, options.write_seconds) / 4)
        self._timer: asyncio.TimerHandle | None = None

    def admit(self, new: BoundedProtocol, connections: Iterable[Any]) -> bool:
        """Whether there is room for a connection; the oldest idle one is closed to make room."""
        if self._timer is None:
            self._timer = new.loop.call_later(self._period, self._look, new.loop, connections)
        lingering = [one for one in connections if one.lingering.lingers]
        if len(lingering) > _MOST_LINGERING:
            min(lingering, key=lambda one: one.idle_since).transport.abort()
        open_ones = [one for one in connections if not one.transport.is_closing()]
        if len(open_ones) <= self._most:
            return True
        idle = [one for one in open_ones if one is not new and one.idle and not one.unsent]
        if not idle:
            return False
        min(idle, key=lambda one: one.idle_since).transport.abort()
        return True

    def _look(self, loop: asyncio.AbstractEventLoop, connections: Iterable[Any]) -> None:
        now = loop.time()
        for connection in list(connections):
            connection.look(now)
        left = any(True for _ in connections)
        self._timer = loop.call_later(self._period, self._look, loop, connections) if left else None


class BoundedProtocol(H11Protocol):
    """uvicorn's protocol within limits."""

    def __init__(self, *arguments: Any, limits: ConnectionLimits, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._limits = limits
        self.idle_since = 0.0  # the event loop's time when the connection, or a request's head, began
        self._refused = False
        self._unsent: int | None = None  # unsent bytes at the last look, for a client that is slow to read
        self._unsent_since = 0.0  # time since when they have not decreased

    @property
    def idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def unsent(self) -> int:
        """Bytes of answers that the system has not taken yet."""
        return self.transport.get_write_buffer_size()

    # -- called by the transport and by uvicorn

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the connection, or refuse it."""
        most, seconds = self._limits.options.max_request_bytes, self._limits.options.body_seconds
        self.lingering = LingeringTransport(transport, self._still_sends, _LINGERING_BODIES * most, seconds)
        super().connection_made(self.lingering)  # type: ignore[arg-type]
        self.idle_since = self.loop.time()
        if not self._limits.admit(self, self.connections):
            self._refused = True
            self.transport.write(_REFUSED)
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self.lingering.end()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take data. Reading continues while a request is answered, to notice when the client disconnects."""
        if self.lingering.lingers:
            self.lingering.drop(len(data))
            return
        if self.timeout_keep_alive_task is not None:
            self.idle_since = self.loop.time()
        super().data_received(data)
        if self.flow.read_paused and self.conn.their_state is h11.DONE:
            if len(self.conn.trailing_data[0]) > _MOST_PIPELINED:
                self.transport.abort()
            else:
                self.flow.resume_reading()

    def resume_writing(self) -> None:
        """The client has read enough that more can be written."""
        self._unsent = None
        super().resume_writing()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        self.idle_since = self.loop.time()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer input that is not HTTP, unless another answer has begun."""
        try:
            super().send_400_response(msg)
        except h11.LocalProtocolError:
            self.transport.abort()
        if not self.idle:  # the request that turned into garbage is over
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def shutdown(self) -> None:
        """Close the connection when it is idle."""
        if self.lingering.lingers:
            self.lingering.end()
            return
        try:
            super().shutdown()
        except h11.LocalProtocolError:
            self.transport.abort()

    def _unsupported_upgrade_warning(self) -> None:
        """Answer as if the request did not ask for an upgrade; uvicorn would log two lines."""

    def _still_sends(self) -> bool:
        """Whether the client may still be sending input that was not answered."""
        unread = self.conn.their_state in (h11.SEND_BODY, h11.ERROR) or bool(self.conn.trailing_data[0])
        return unread or self._refused or self.flow.read_paused

    # -- called by the limits

    def look(self, now: float) -> None:
        """End the connection if it has timed out."""
        closing = self.transport.is_closing()
        if (closing or self.flow.write_paused) and not self._takes_answer(now):
            self.transport.abort()
        elif not closing and self.idle and self.timeout_keep_alive_task is None:
            self._look_at_head(now - self.idle_since > self._limits.options.head_seconds)

    def _takes_answer(self, now: float) -> bool:
        """Whether the client has read any of its answer in time. Nothing more is written before `resume_writing`."""
        unsent = unsent_bytes(self.transport)
        if self._unsent is None or unsent < self._unsent:
            self._unsent_since = now
        self._unsent = unsent
        return now - self._unsent_since <= self._limits.options.write_seconds

    def _look_at_head(self, late: bool) -> None:
        """Stop waiting for a head."""
        if not late:
            return
        if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0] and not self.unsent:
            self.transport.write(_LATE)
        self.transport.close()
