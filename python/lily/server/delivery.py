"""Delivers what the engine produces: as one JSON body or as server-sent events, until the client goes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from lily.chat import Answer, ContentDelta, Done, ReasoningDelta, TokenLogprob, collect
from lily.chat.events import Event
from lily.errors import CancelledError
from lily.server.endpoint import CLIENT_GONE, LongResponse, client_of
from lily.server.engine import Failure, Finished, PrefillProgress, Ticket, Work
from lily.server.errors import ApiError, as_api_error
from lily.server.json_text import dump_json
from lily.server.service import Service

__all__ = ["EventStream", "Reply", "StreamFormat", "collect_answers", "sse", "start_stream"]


class StreamFormat(Protocol):
    """How an API writes a stream."""

    def begin(self, prefill: PrefillProgress | None) -> Iterable[bytes]:
        """Before the first event; `prefill` is None if nothing is known of the prompt."""

    def event(self, choice: int, event: Event) -> Iterable[bytes]:
        """An event of a choice."""

    def end(self, queue_seconds: float) -> Iterable[bytes]:
        """After the last event of a request that waited that long."""

    def error(self, error: ApiError) -> bytes:
        """Instead of the rest."""


def sse(data: Any, event: str | None = None) -> bytes:
    """One server-sent event."""
    body = data.encode() if isinstance(data, str) else dump_json(data)
    head = b"" if event is None else f"event: {event}\n".encode()
    return head + b"data: " + body + b"\n\n"


@dataclass(frozen=True)
class Reply:
    """A whole answer, the log-probabilities of its tokens, if they were asked for, and the events it is made of."""

    answer: Answer
    logprobs: list[TokenLogprob]
    events: list[Event]


async def collect_answers(service: Service, request: Request, work: Work, choices: int) -> tuple[list[Reply], Ticket]:
    """All answers of a request; the work ends early when the client goes."""
    ticket = service.engine.submit(work, client_of(request))
    events: list[list[Event]] = [[] for _ in range(choices)]
    async with _cancelled_on_disconnect(request.receive, ticket):
        while not isinstance(item := await ticket.next(), Finished):
            if isinstance(item, Failure):
                raise item.error
            if isinstance(item, tuple):
                events[item[0]].append(item[1])
                if isinstance(item[1], Done):
                    service.metrics.count_turn(item[1], ticket.queue_seconds)
    replies = [Reply(collect(of_one), _logprobs_of(of_one), of_one) for of_one in events]
    if any(reply.answer.finish_reason == "cancelled" for reply in replies):
        raise CancelledError("the request was cancelled")
    return replies, ticket


def _logprobs_of(events: list[Event]) -> list[TokenLogprob]:
    return [item for event in events if isinstance(event, (ContentDelta, ReasoningDelta)) for item in event.logprobs]


async def start_stream(service: Service, request: Request, work: Work, form: StreamFormat) -> EventStream:
    """A response that streams; what fails before anything is computed is raised here."""
    ticket = service.engine.submit(work, client_of(request))
    try:
        first = await ticket.first(service.options.keep_alive_seconds)
    except BaseException:
        ticket.cancel()
        raise
    if isinstance(first, Failure):
        raise first.error
    return EventStream(service, ticket, form)


class EventStream(LongResponse):
    """Server-sent events of one ticket; a client that goes cancels it."""

    media_type = "text/event-stream"

    def __init__(self, service: Service, ticket: Ticket, form: StreamFormat) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._service = service
        self._ticket = ticket
        self._form = form
        self._outcome = CLIENT_GONE

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events as they come."""
        try:
            async with _cancelled_on_disconnect(receive, self._ticket):
                with contextlib.suppress(OSError):  # the client has gone
                    await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                    async for part in self._parts():
                        await send({"type": "http.response.body", "body": part, "more_body": True})
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self.when_finished(self._outcome)

    async def _parts(self) -> AsyncIterator[bytes]:
        interval = self._service.options.keep_alive_seconds
        prefill: PrefillProgress | None = None
        begun = False
        said = time.monotonic()
        while not isinstance(item := await self._ticket.next(interval), Finished):
            if isinstance(item, Failure):
                yield self._failed(item.error)
                return
            if isinstance(item, PrefillProgress):
                prefill = item
                if not begun:
                    begun = True
                    said = time.monotonic()
                    yield b"".join(self._form.begin(prefill))
            if not isinstance(item, tuple):
                if item is None or time.monotonic() - said >= interval:
                    said = time.monotonic()
                    yield _comment(prefill)
                continue
            if not begun:
                begun = True
                yield b"".join(self._form.begin(prefill))
            choice, event = item
            if isinstance(event, Done):
                self._service.metrics.count_turn(event, self._ticket.queue_seconds)
                if event.finish_reason == "cancelled":
                    yield self._failed(CancelledError())
                    return
            said = time.monotonic()
            yield b"".join(self._form.event(choice, event))
        self._outcome = 200
        yield b"".join(self._form.end(self._ticket.queue_seconds))

    def _failed(self, error: BaseException) -> bytes:
        told = as_api_error(error)
        self._outcome = CLIENT_GONE if self._ticket.left else told.status
        return self._form.error(told)


def _comment(prefill: PrefillProgress | None) -> bytes:
    return b": waiting\n\n" if prefill is None else f": prefill {prefill.done}/{prefill.total}\n\n".encode()


@contextlib.asynccontextmanager
async def _cancelled_on_disconnect(receive: Receive, ticket: Ticket) -> AsyncIterator[None]:
    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        ticket.left = True
        ticket.cancel()

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()
        ticket.cancel()
