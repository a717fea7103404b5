"""The single thread that uses the model, behind a fair, bounded queue."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from lily.errors import CancelledError
from lily.server.errors import ApiError, without_frames
from lily.server.fair_queue import FairQueue

__all__ = ["Engine", "Failure", "Finished", "Item", "PrefillProgress", "Ticket", "Work"]

logger = logging.getLogger("lily.server")

_MOST_ITEMS = 8192  # bytes that a client may leave unread


@dataclass(frozen=True)
class PrefillProgress:
    """How many of the prompt's tokens have been computed."""

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

    def __init__(self, engine: Engine, work: Work, client: str, loop: asyncio.AbstractEventLoop) -> None:
        self.client = client
        self.queued_at = time.perf_counter()
        self.started_at: float | None = None
        self._engine = engine
        self._work: Work | None = work
        self._loop = loop
        self._items: asyncio.Queue[Item] = asyncio.Queue()
        self._first: Item | None = None
        self._cancelled = threading.Event()
        self._cancel_work: Callable[[], None] | None = None

    # -- for the event loop

    async def first(self, seconds: float) -> Item | None:
        """The first item, which `next` returns again; None if none comes in time."""
        self._first = await self.next(seconds)
        return self._first

    async def next(self, seconds: float | None = None) -> Item | None:
        """The next item; None if none comes in time. The last one is `Finished` or `Failure`."""
        if self._first is not None:
            item, self._first = self._first, None
            return item
        if not self._items.empty():
            return self._items.get_nowait()
        try:
            return await asyncio.wait_for(self._items.get(), seconds)
        except asyncio.TimeoutError:  # another class than TimeoutError before Python 3.11
            return None

    def cancel(self) -> None:
        """End the work within one token, or one chunk of the prompt; does nothing once it is over.

        A waiting request leaves the queue at once, with all that it holds.
        """
        self._cancelled.set()
        if self._engine.remove(self):
            self._work = None
            self.put(Failure(CancelledError("the request was cancelled while it waited")))
        cancel_work = self._cancel_work
        if cancel_work is not None:
            cancel_work()

    def abandon(self) -> None:
        """Cancel, and wake up whoever waits for an item at once, even if the work is in a long call."""
        self.cancel()
        self._items.put_nowait(Failure(CancelledError("the client has disconnected")))

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
        """Report progress of a prefill; raises CancelledError if nobody waits for it any more."""
        if self.cancelled:
            raise CancelledError("the client has disconnected")
        self.put(PrefillProgress(done, total))

    def run(self) -> None:
        """Do the work, in the engine's thread."""
        self.started_at = time.perf_counter()
        work, self._work = self._work, None
        end: Item = Finished()
        try:
            if work is None or self.cancelled:
                raise CancelledError("the request was cancelled while it waited")
            with contextlib.closing(work(self)) as items:  # type: ignore[type-var]
                for item in items:
                    self.put(item)
                    if self._items.qsize() > _MOST_ITEMS:
                        raise CancelledError("the client does not read its answer")
                    if self.cancelled:
                        break
        except BaseException as error:  # whatever it is, the client gets it and the engine continues
            end = Failure(without_frames(error))
        self._cancel_work = None
        self.put(end)

    def put(self, item: Item) -> None:
        """Hand an item to the event loop, from any thread."""
        try:
            self._loop.call_soon_threadsafe(self._items.put_nowait, item)
        except RuntimeError:  # the loop is closed
            self._cancelled.set()


class Engine:
    """Runs the work of tickets one at a time. Clients take turns; the requests of each keep their order."""

    def __init__(self, max_queue: int) -> None:
        self._max_queue = max_queue
        self._waiting: FairQueue[Ticket] = FairQueue()
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
        ticket = Ticket(self, work, client, asyncio.get_running_loop())
        with self._changed:
            if self._closing:
                raise ApiError(503, "the server is shutting down", code="unavailable", retry_after=5)
            if len(self._waiting) >= self._max_queue:
                message = f"{len(self._waiting)} requests are already waiting; try again later"
                raise ApiError(429, message, code="rate_limit_exceeded", retry_after=1)
            self._waiting.push(client, ticket)
            self._changed.notify()
        return ticket

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Requests in work: 0 or 1."""
        return int(self._running is not None)

    @property
    def stuck(self) -> bool:
        """Whether the thread did not end when the engine was closed, so that the model is still in use."""
        return self._closing and self._thread.is_alive()

    def close(self, seconds: float = 10.0) -> None:
        """End all requests and the thread, waiting for it at most that long."""
        with self._changed:
            self._closing = True
            tickets = list(self._waiting)
            running = self._running
            self._changed.notify()
        for ticket in [*tickets, *([] if running is None else [running])]:
            ticket.cancel()
        self._thread.join(seconds)
        if self._thread.is_alive():
            logger.error("the running request did not end within %g seconds", seconds)
            if running is not None:
                running.put(Failure(CancelledError("the server is shutting down")))

    def _loop(self) -> None:
        while True:
            with self._changed:
                self._running = None
                while not self._waiting and not self._closing:
                    self._changed.wait()
                if not self._waiting:
                    return
                ticket = self._waiting.pop()
                self._running = ticket
            ticket.run()
            del ticket  # its work holds a session

    def remove(self, ticket: Ticket) -> bool:
        """Take a ticket out of the queue; False if it is not there any more."""
        with self._changed:
            return self._waiting.remove(ticket.client, ticket)
