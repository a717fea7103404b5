"""Delivers what the engine produces, as one JSON body or as server-sent events, until the client disconnects."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from lily.chat import Answer, ContentDelta, Done, TokenLogprob, collect
from lily.chat.events import Event
from lily.errors import CancelledError
from lily.server.call import Call, call_of
from lily.server.endpoint import CLIENT_GONE, LongResponse
from lily.server.engine import Failure, Finished, PrefillProgress, Ticket, Work
from lily.server.errors import ApiError, as_api_error
from lily.server.json_text import dump_json
from lily.server.service import Service

__all__ = ["EventStream", "Reply", "StreamFormat", "collect_answers", "sse", "start_stream"]

_LAST_SECONDS = 1.0  # seconds for a client to read the error that ends its stream


class StreamFormat(Protocol):
    """How an API writes a stream."""

    def begin(self, prefill: PrefillProgress | None) -> Iterable[bytes]:
        """Before the first event; `prefill` is None if nothing is known of the prompt."""

    def event(self, choice: int, event: Event) -> Iterable[bytes]:
        """An event of a choice."""

    def end(self, queue_seconds: float) -> Iterable[bytes]:
        """After the last event, with the time that the request waited."""

    def error(self, error: ApiError) -> bytes:
        """Instead of the rest."""


def sse(data: Any, event: str | None = None) -> bytes:
    """One server-sent event."""
    body = data.encode() if isinstance(data, str) else dump_json(data)
    head = b"" if event is None else f"event: {event}\n".encode()
    return head + b"data: " + body + b"\n\n"


@dataclass(frozen=True)
class Reply:
    """A whole answer, the log-probabilities of its content, if they were asked for, and the events it is made of."""

    answer: Answer
    logprobs: list[TokenLogprob]
    events: list[Event]


async def collect_answers(service: Service, request: Request, work: Work, choices: int) -> tuple[list[Reply], Ticket]:
    """All answers of a request; the work ends early if the client disconnects."""
    call = call_of(request)
    ticket = service.engine.submit(_counted(service, work), call.client)
    events: list[list[Event]] = [[] for _ in range(choices)]
    with _cancelled_at_end(call, ticket):
        while not isinstance(item := await ticket.next(), Finished):
            if isinstance(item, Failure):
                raise item.error
            if isinstance(item, tuple):
                events[item[0]].append(item[1])
    replies = [Reply(collect(of_one), _logprobs_of(of_one), of_one) for of_one in events]
    if any(reply.answer.finish_reason == "cancelled" for reply in replies):
        raise CancelledError("the request was cancelled")
    return replies, ticket


def _counted(service: Service, work: Work) -> Work:
    """The same work, whose turns the metrics count."""

    def counted(ticket: Ticket) -> Iterator[tuple[int, Event]]:
        with contextlib.closing(work(ticket)) as items:  # type: ignore[type-var]
            for item in items:
                if isinstance(item[1], Done):
                    service.metrics.count_turn(item[1], ticket.queue_seconds)
                yield item

    return counted


def _logprobs_of(events: list[Event]) -> list[TokenLogprob]:
    return [item for event in events if isinstance(event, ContentDelta) for item in event.logprobs]


async def start_stream(service: Service, request: Request, work: Work, form: StreamFormat) -> EventStream:
    """A streaming response; errors before anything is computed are raised here."""
    call = call_of(request)
    ticket = service.engine.submit(_counted(service, work), call.client)
    try:
        with call.when_left(ticket.abandon):
            first = await ticket.first(service.options.keep_alive_seconds)
        if isinstance(first, Failure):
            raise first.error
    except BaseException:
        ticket.cancel()
        raise
    return EventStream(service, call, ticket, form)


class EventStream(LongResponse):
    """Server-sent events of one ticket, which is cancelled if the client disconnects."""

    media_type = "text/event-stream"

    def __init__(self, service: Service, call: Call, ticket: Ticket, form: StreamFormat) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._service = service
        self._call = call
        self._ticket = ticket
        self._form = form

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events as they come."""
        del scope, receive

        async def put(data: bytes, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": more})

        with _cancelled_at_end(self._call, self._ticket), contextlib.suppress(OSError, asyncio.CancelledError):
            try:
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                async for part in self._parts():
                    await put(part)
            except asyncio.CancelledError:  # the server's time to shut down is over
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(put(self._failed(CancelledError())), _LAST_SECONDS)
            await put(b"", False)

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
            if isinstance(event, Done) and event.finish_reason == "cancelled":
                yield self._failed(CancelledError())
                return
            said = time.monotonic()
            yield b"".join(self._form.event(choice, event))
        self.outcome = 200
        yield b"".join(self._form.end(self._ticket.queue_seconds))

    def _failed(self, error: BaseException) -> bytes:
        self._service.note(error)
        told = as_api_error(error)
        self.outcome = CLIENT_GONE if self._call.left else told.status
        return self._form.error(told)


def _comment(prefill: PrefillProgress | None) -> bytes:
    return b": waiting\n\n" if prefill is None else f": prefill {prefill.done}/{prefill.total}\n\n".encode()


@contextlib.contextmanager
def _cancelled_at_end(call: Call, ticket: Ticket) -> Iterator[None]:
    """Cancel a ticket at the end of the block, or when the client disconnects."""
    try:
        with call.when_left(ticket.abandon):
            yield
    finally:
        ticket.cancel()
