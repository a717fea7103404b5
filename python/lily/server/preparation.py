"""Prepares requests for the engine in a few threads, so that the event loop never blocks for long."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from lily.errors import CancelledError
from lily.server.call import Call
from lily.server.errors import ApiError, without_frames
from lily.server.fair_queue import FairQueue

__all__ = ["Preparation"]

T = TypeVar("T")

_THREADS = 2
_MOST_THREADS = 16
_LONG = 5.0  # seconds after which a job no longer counts against the number of threads
_MOST_SECONDS = 60.0  # seconds for one job, waiting included


class _Job:
    def __init__(self, function: Callable[[], Any], client: str) -> None:
        self.client = client
        self.submitted = time.monotonic()
        self.began: float | None = None
        self.timer: asyncio.TimerHandle
        self.cancelled = False
        self.loop = asyncio.get_running_loop()
        self.result: asyncio.Future[Any] = self.loop.create_future()
        self.function: Callable[[], Any] | None = function

    def run(self) -> None:
        """Do the work, in a thread."""
        function, self.function = self.function, None
        value: Any = None
        error: BaseException | None = None
        try:
            if function is not None:
                value = function()
        except BaseException as raised:  # whatever it is, the client gets it and the thread continues
            error = without_frames(raised)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(self.finish, value, error)

    def check(self) -> None:
        """Raise CancelledError if nobody waits for the result."""
        if self.cancelled:
            raise CancelledError("the client no longer waits for this request")

    def finish(self, value: Any, error: BaseException | None) -> None:
        """Give the result, unless there is one; for the event loop."""
        if self.result.done():
            return
        if error is None:
            self.result.set_result(value)
        else:
            self.result.set_exception(error)


class Preparation:
    """A few threads, and the queue in front of them in which clients take turns.

    A long job does not hold up the others: another thread is started for them, up to a limit.
    """

    def __init__(self, most_waiting: int) -> None:
        self._most_waiting = most_waiting
        self._waiting: FairQueue[_Job] = FairQueue()
        self._running: set[_Job] = set()
        self._changed = threading.Condition()
        self._threads: set[threading.Thread] = set()
        self._closing = False

    async def run(self, call: Call, function: Callable[[Callable[[], None]], T]) -> T:
        """Run `function` and return its result. Its argument is a function that raises if the client has disconnected.

        Raises
        ------
        ApiError
            429: too many requests are being prepared. 503: it takes too long, or the server is shutting down.
        CancelledError
            The client has disconnected.
        """
        job = _Job(lambda: function(job.check), call.client)
        self._submit(job)
        job.timer = job.loop.call_later(min(_LONG, _MOST_SECONDS), self._look_at, job)
        with call.when_left(lambda: self._cancel(job, CancelledError("the client has disconnected"))):
            try:
                result: T = await job.result
            finally:
                job.timer.cancel()
                self._cancel(job, CancelledError("the server is shutting down"))
        return result

    @property
    def waiting(self) -> int:
        """Requests that wait for a thread."""
        return len(self._waiting)

    def close(self, seconds: float) -> None:
        """Refuse waiting jobs and end the threads, waiting at most that long for running jobs."""
        with self._changed:
            self._closing = True
            waiting, threads = list(self._waiting), list(self._threads)
            for job in [*waiting, *self._running]:
                job.cancelled = True
            self._changed.notify_all()
        for job in waiting:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                job.loop.call_soon_threadsafe(self._cancel, job, CancelledError("the server is shutting down"))
        end = time.monotonic() + seconds
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _submit(self, job: _Job) -> None:
        with self._changed:
            if self._closing:
                raise ApiError(503, "the server is shutting down", code="unavailable", retry_after=5)
            if len(self._waiting) >= self._most_waiting:
                message = f"{len(self._waiting)} requests are already waiting to be prepared; try again later"
                raise ApiError(429, message, code="rate_limit_exceeded", retry_after=1)
            self._waiting.push(job.client, job)
            self._changed.notify()
            self._start_thread()

    def _look_at(self, job: _Job) -> None:
        """Make sure that an unfinished job gets a thread, and limit its time."""
        if time.monotonic() - job.submitted >= _MOST_SECONDS:
            message = f"the request could not be prepared within {_MOST_SECONDS:.0f} seconds"
            self._cancel(job, ApiError(503, message, code="overloaded", retry_after=5))
        else:
            with self._changed:
                self._start_thread()
            job.timer = job.loop.call_later(min(_LONG, _MOST_SECONDS), self._look_at, job)

    def _start_thread(self) -> None:
        """Start a thread if jobs are waiting and all threads are held up."""
        if self._waiting:
            now = time.monotonic()
            slow = sum(one.began is not None and now - one.began > _LONG for one in self._running)
            busy = len(self._running) + len(self._waiting)
            if len(self._threads) < min(busy, _THREADS + slow, _MOST_THREADS):
                thread = threading.Thread(target=self._work, name="lily-prepare", daemon=True)
                self._threads.add(thread)
                thread.start()

    def _cancel(self, job: _Job, error: Exception) -> None:
        with self._changed:
            self._waiting.remove(job.client, job)
        job.cancelled = True
        job.function = None  # it holds the request
        job.finish(None, error)

    def _work(self) -> None:
        spare = False
        while not spare:
            with self._changed:
                while not self._waiting and not self._closing:
                    self._changed.wait()
                if self._closing:
                    break
                job = self._waiting.pop()
                job.began = time.monotonic()
                self._running.add(job)
            job.run()
            with self._changed:
                self._running.discard(job)
                spare = len(self._threads) > _THREADS + len(self._running)
            del job
        with self._changed:
            self._threads.discard(threading.current_thread())
