"""The one thread that uses the model, and the fair, bounded queue in front of it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from lily.errors import CancelledError
from lily.server.errors import ApiError

__all__ = ["Engine", "Failure", "Finished", "Item", "PrefillProgress", "Ticket", "Work"]


@dataclass(frozen=True)
class PrefillProgress:
    """Tokens of the prompt that are there, of all."""

    done: int
    total: int


@dataclass(frozen=True)
class Failure:
    """The work raised."""

    error: BaseException


@dataclass(frozen=True)
class Finished:
    """The work is done."""


#: (choice, event of that choice), or a state of the work.
Item = tuple[int, Any] | PrefillProgress | Failure | Finished
Work = Callable[["Ticket"], Iterator[tuple[int, Any]]]


class Ticket:
    """One request at the engine: its work, and the items that it has produced so far."""

    def __init__(self, work: Work, client: str, loop: asyncio.AbstractEventLoop) -> None:
        self.client = client
        self.queued_at = time.perf_counter()
        self.started_at: float | None = None
        self.left = False  #: whether the client has gone
        self._work = work
        self._loop = loop
        self._items: asyncio.Queue[Item] = asyncio.Queue()
        self._first: Item | None = None
        self._cancelled = threading.Event()
        self._cancel_work: Callable[[], None] | None = None

    # -- for the event loop

    async def first(self, seconds: float) -> Item | None:
        """The first item, which `next` gives again; None if there is none in time."""
        self._first = await self.next(seconds)
        return self._first

    async def next(self, seconds: float | None = None) -> Item | None:
        """The next item; None if there is none in time. The last one is `Finished` or `Failure`."""
        if self._first is not None:
            item, self._first = self._first, None
            return item
        try:
            return await asyncio.wait_for(self._items.get(), seconds)
        except asyncio.TimeoutError:  # another class than TimeoutError before Python 3.11
            return None

    def cancel(self) -> None:
        """End the work within one token, or one chunk of the prompt. Does nothing once it is over."""
        self._cancelled.set()
        cancel_work = self._cancel_work
        if cancel_work is not None:
            cancel_work()

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._cancelled.is_set()

    @property
    def queue_seconds(self) -> float:
        """How long the request waited."""
        return (time.perf_counter() if self.started_at is None else self.started_at) - self.queued_at

    # -- for the work

    def on_cancel(self, cancel_work: Callable[[], None]) -> None:
        """What `cancel` calls while the work runs."""
        self._cancel_work = cancel_work

    def report(self, done: int, total: int) -> None:
        """Progress of a prefill; raises CancelledError to end one that nobody waits for."""
        if self.cancelled:
            raise CancelledError("the client has gone")
        self._put(PrefillProgress(done, total))

    def _run(self) -> None:
        self.started_at = time.perf_counter()
        try:
            with contextlib.closing(self._work(self)) as items:  # type: ignore[type-var]
                for item in items:
                    self._put(item)
                    if self.cancelled:
                        break
            end: Item = Finished()
        except BaseException as error:  # whatever it is, the client is told and the engine goes on
            end = Failure(error)
        self._cancel_work = None
        self._put(end)

    def _put(self, item: Item) -> None:
        try:
            self._loop.call_soon_threadsafe(self._items.put_nowait, item)
        except RuntimeError:  # the loop is closed
            self._cancelled.set()


class Engine:
    """Runs the work of tickets one after the other. Clients take turns; each one's requests keep their order."""

    def __init__(self, max_queue: int) -> None:
        self._max_queue = max_queue
        self._waiting: OrderedDict[str, deque[Ticket]] = OrderedDict()
        self._changed = threading.Condition()
        self._running: Ticket | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._loop, name="lily-engine", daemon=True)
        self._thread.start()

    def submit(self, work: Work, client: str) -> Ticket:
        """Queue a request of a client; call it from the event loop.

        Raises
        ------
        ApiError
            429: too many requests wait. 503: the server is shutting down.
        """
        ticket = Ticket(work, client, asyncio.get_running_loop())
        with self._changed:
            if self._closing:
                raise ApiError(503, "the server is shutting down", code="unavailable", retry_after=5)
            if self.waiting >= self._max_queue:
                message = f"{self.waiting} requests are waiting already; try again later"
                raise ApiError(429, message, code="rate_limit_exceeded", retry_after=1)
            self._waiting.setdefault(client, deque()).append(ticket)
            self._changed.notify()
        return ticket

    @property
    def waiting(self) -> int:
        """Requests in the queue that are still wanted."""
        with self._changed:
            return sum(not ticket.cancelled for tickets in self._waiting.values() for ticket in tickets)

    @property
    def running(self) -> int:
        """Requests in work: 0 or 1."""
        return int(self._running is not None)

    def close(self) -> None:
        """End the request in work and the waiting ones, and the thread."""
        with self._changed:
            self._closing = True
            tickets = [ticket for tickets in self._waiting.values() for ticket in tickets]
            running = self._running
            self._changed.notify()
        for ticket in [*tickets, *([] if running is None else [running])]:
            ticket.cancel()
        self._thread.join()

    def _loop(self) -> None:
        while True:
            with self._changed:
                self._running = None
                while not self._waiting and not self._closing:
                    self._changed.wait()
                if not self._waiting:
                    return
                ticket = self._take()
                self._running = ticket
            if ticket.cancelled:
                ticket._put(Failure(CancelledError("the request was cancelled while it waited")))
            else:
                ticket._run()
            del ticket  # its work holds a session

    def _take(self) -> Ticket:
        client, tickets = next(iter(self._waiting.items()))
        ticket = tickets.popleft()
        if tickets:
            self._waiting.move_to_end(client)
        else:
            del self._waiting[client]
        return ticket
