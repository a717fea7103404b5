"""The end of the server under all kinds of load: SIGTERM once or twice, and it is gone in the promised time."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
from collections.abc import Awaitable, Callable

from .figures import MIB, Figures
from .limits import Limits
from .raw_http import Streams, connect, head, request_bytes
from .served import idle_end, serving

__all__ = ["attack"]

GRACE_SECONDS = 3
MARGIN_SECONDS = 1.5  # besides twice the time of an idle server
STORY = {"prompt": "Once", "max_tokens": 3000, "stream": True, "logit_bias": {"4063": -100, "4065": -100}}
Load = Callable[[int], Awaitable[list[Streams]]]


def attack(limits: Limits) -> Figures:
    """A server for each kind of load and way of signalling."""
    figures = Figures("shutdown")
    slowest = {"once": 0.0, "twice": 0.0}
    margin = MARGIN_SECONDS + 2 * idle_end("--shutdown-timeout", str(GRACE_SECONDS))
    for seed in limits.seeds():
        if limits.is_over:
            break
        load, twice = LOADS[seed % len(LOADS)], seed // len(LOADS) % 2 == 1
        number = signal.SIGINT if seed // len(LOADS) % 4 > 1 else signal.SIGTERM
        took = asyncio.run(_end(load, twice, number, random.Random(seed)))
        most = margin + (0 if twice else GRACE_SECONDS)
        way = "twice" if twice else "once"
        slowest[way] = max(slowest[way], took)
        what = f"seed {seed}, {load.__name__.strip('_')}, {number.name} {way}: gone after {took:.1f} s"
        figures.count("hang" if took > most else "fine", what)
    figures.notes.append(f"slowest end: {slowest['once']:.1f} s, after two signals {slowest['twice']:.1f} s")
    return figures


async def _end(load: Load, twice: bool, number: signal.Signals, rng: random.Random) -> float:
    with serving(Figures(""), "--context", "4096", "--shutdown-timeout", str(GRACE_SECONDS), most_health=60) as server:
        streams = await load(server.port)
        await asyncio.sleep(rng.random() * 0.5)
        server.stop_watching()
        started = time.monotonic()
        server.signal(number)
        if twice:
            await asyncio.sleep(0.2)
            started = time.monotonic()
            server.signal(number)
        took = await asyncio.to_thread(server.gone, started, 30)
        for _, writer in streams:
            writer.transport.abort()
        return took


async def _open(port: int, *data: bytes, count: int = 1) -> list[Streams]:
    streams = [await connect(port, receive_buffer=4096) for _ in range(count)]
    for _, writer in streams:
        for part in data:
            writer.write(part)
    return streams


async def _idle(port: int) -> list[Streams]:
    return await _open(port, count=20)


async def _kept_alive(port: int) -> list[Streams]:
    return await _open(port, head("/health", 0, method="GET"), count=20)


async def _half_heads(port: int) -> list[Streams]:
    return await _open(port, b"POST /v1/completions HTTP/1.1\r\nHost: ", count=20)


async def _half_bodies(port: int) -> list[Streams]:
    return await _open(port, head("/v1/completions", 100_000), b'{"prompt": "', count=20)


async def _unread_streams(port: int) -> list[Streams]:
    return await _open(port, request_bytes("/v1/completions", {**STORY, "logprobs": 5, "n": 4}), count=4)


async def _full_queue(port: int) -> list[Streams]:
    return await _open(port, request_bytes("/v1/completions", {**STORY, "stream": False}), count=100)


async def _unread_answers(port: int) -> list[Streams]:
    return await _open(port, request_bytes("/tokenize", {"prompt": "a " * 500_000}), count=4)


async def _encodings(port: int) -> list[Streams]:
    return await _open(
        port,
        request_bytes("/v1/chat/completions", {"messages": [{"role": "user", "content": "🙂" * 900_000}]}),
        count=4,
    )


async def _grammars(port: int) -> list[Streams]:
    form = {
        "type": "grammar",
        "grammar": "start: r0\n" + "\n".join(f"r{n}: r{n + 1} r{n + 1}" for n in range(2000)) + '\nr2000: "a"',
    }
    body = {"messages": [{"role": "user", "content": "x"}], "response_format": form}
    return await _open(port, request_bytes("/v1/chat/completions", body), count=8)


async def _long_prompts(port: int) -> list[Streams]:
    return await _open(port, request_bytes("/v1/completions", {"prompt": [5] * 4000, "max_tokens": 50}), count=8)


async def _uploads(port: int) -> list[Streams]:
    return await _open(port, head("/v1/completions", 20 * MIB), b" " * (15 * MIB), count=4)


async def _background(port: int) -> list[Streams]:
    body = {"input": "Tell a story", "background": True, "max_output_tokens": 3000}
    return await _open(port, request_bytes("/v1/responses", body), count=30)


async def _left(port: int) -> list[Streams]:
    streams = await _full_queue(port)
    for _, writer in streams[1:]:
        with contextlib.suppress(OSError):
            await asyncio.wait_for(writer.drain(), 1)
        writer.transport.abort()
    return streams[:1]


LOADS: tuple[Load, ...] = (
    *(_idle, _kept_alive, _half_heads, _half_bodies, _unread_streams, _full_queue, _unread_answers, _encodings),
    *(_grammars, _long_prompts, _uploads, _background, _left),
)
