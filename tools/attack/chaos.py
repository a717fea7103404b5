"""Clients that do everything wrong at once: invalid, half-sent, dropped, slow, huge. No 500, nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Awaitable, Callable

from .bodies import ENDPOINTS, broken_json, good, mutated
from .figures import MIB, Figures
from .limits import Limits
from .raw_http import close, connect, head, read_answer, request_bytes
from .served import Served, serving

__all__ = ["attack"]

CLIENTS = 64
GROWS = 160 * MIB  # of the cache, compiled grammars, and what the allocator keeps
ANSWER_SECONDS = 240  # behind a full queue
# One request may be refused with any of these; a 500 is a fault.
PROPER = {0, 200, 400, 401, 403, 404, 405, 408, 411, 413, 415, 422, 429, 431, 501, 503, 505}
Client = Callable[[int, random.Random], Awaitable[tuple[int, str]]]


def attack(limits: Limits) -> Figures:
    """64 clients at a time."""
    figures = Figures("chaos")
    with serving(figures, "--context", "4096", "--cache-gb", "0.05", most_health=5.0, grows=GROWS) as server:
        asyncio.run(_clients(figures, limits, server))
        status, _ = server.post("/v1/completions", {"prompt": "Hello", "max_tokens": 2})
        if status != 200:
            figures.broken(f"a good request got {status} afterwards")
    return figures


async def _clients(figures: Figures, limits: Limits, server: Served) -> None:
    seeds = iter(limits.seeds())

    async def client() -> None:
        for seed in seeds:
            if limits.is_over or server.process.poll() is not None:
                return
            rng = random.Random(seed)
            kind = rng.choice(KINDS)
            what = f"seed {seed}, {kind.__name__.strip('_')}"
            try:
                status, more = await asyncio.wait_for(kind(server.port, rng), ANSWER_SECONDS)
            except asyncio.TimeoutError:
                figures.count("hang", what)
            except OSError:
                figures.count("refused")  # the connection was closed or refused
            else:
                proper = status in PROPER and b"Traceback" not in more.encode()
                figures.count(
                    "fine" if status == 200 else "refused" if proper else f"raw: status {status} {more[:200]}", what
                )

    await asyncio.gather(*(client() for _ in range(CLIENTS)))


async def _send(port: int, data: bytes) -> tuple[int, str]:
    reader, writer = await connect(port)
    try:
        writer.write(data)
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        status, body = await read_answer(reader)
        return status, _error_in(body, status)
    finally:
        await close(writer)


def _error_in(body: bytes, status: int) -> str:
    return body[:300].decode("utf-8", "replace") if status != 200 else ""


async def _valid(port: int, rng: random.Random) -> tuple[int, str]:
    path = rng.choice(list(ENDPOINTS))
    status, body = await _send(port, request_bytes(path, {**good(path), "stream": rng.random() < 0.3}))
    return (status, body) if status in (200, 429, 503) else (999, f"a good request to {path} got {status}: {body}")


async def _mutated(port: int, rng: random.Random) -> tuple[int, str]:
    path = rng.choice(list(ENDPOINTS))
    return await _send(port, request_bytes(path, mutated(path, rng)))


async def _broken(port: int, rng: random.Random) -> tuple[int, str]:
    return await _send(port, request_bytes(rng.choice(list(ENDPOINTS)), broken_json(rng)))


async def _half_sent(port: int, rng: random.Random) -> tuple[int, str]:
    """Some of a request, then nothing for a while, then gone."""
    data = request_bytes("/v1/chat/completions", good("/v1/chat/completions"))
    _reader, writer = await connect(port)
    try:
        writer.write(data[: rng.randrange(len(data))])
        await writer.drain()
        await asyncio.sleep(rng.random())
        return 0, ""
    finally:
        if rng.random() < 0.5:
            writer.transport.abort()
        await close(writer)


async def _left(port: int, rng: random.Random) -> tuple[int, str]:
    """Leave while the answer is computed or streamed."""
    body = {
        "messages": [{"role": "user", "content": "Tell me a story."}],
        "max_tokens": 2000,
        "stream": rng.random() < 0.7,
    }
    reader, writer = await connect(port)
    try:
        writer.write(request_bytes("/v1/chat/completions", body))
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(reader.read(rng.choice((1, 500, 5000))), rng.random() * 3)
        return 0, ""
    finally:
        if rng.random() < 0.5:
            writer.transport.abort()
        await close(writer)


async def _slow_reader(port: int, rng: random.Random) -> tuple[int, str]:
    body = {"prompt": "Once", "max_tokens": 100, "stream": True, "n": 4}
    reader, writer = await connect(port, receive_buffer=4096)
    try:
        writer.write(request_bytes("/v1/completions", body))
        for _ in range(20):
            if not await reader.read(100):
                break
            await asyncio.sleep(0.05)
        return 0, ""
    finally:
        await close(writer)


async def _slow_writer(port: int, rng: random.Random) -> tuple[int, str]:
    data = request_bytes("/tokenize", {"prompt": "Hello"})
    reader, writer = await connect(port)
    try:
        for byte in data:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0.005)
        status, more = await read_answer(reader)
        return status, _error_in(more, status)
    finally:
        await close(writer)


async def _huge(port: int, rng: random.Random) -> tuple[int, str]:
    size = rng.choice((2, 8, 33, 40)) * MIB
    kind = rng.choice(("text", "zeros", "said"))
    if kind == "said":
        return await _send(
            port, head("/v1/chat/completions", rng.choice((size, 2**40, 2**64, -1, "1e9", "+5", "0x10"))) + b"{"
        )
    text = b"a" * size if kind == "text" else b"\0" * size
    return await _send(
        port, request_bytes("/v1/chat/completions", b'{"messages": [{"role": "user", "content": "' + text + b'"}]}')
    )


async def _garbage(port: int, rng: random.Random) -> tuple[int, str]:
    data = rng.choice(
        (
            rng.randbytes(2000),
            b"\x16\x03\x01" + rng.randbytes(200),
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"\n" * 5000,
            b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 100_000,
            b"GET " + b"/" * 100_000 + b" HTTP/1.1\r\n\r\n",
        )
    )
    reader, writer = await connect(port)
    try:
        writer.write(data)
        with contextlib.suppress(asyncio.TimeoutError):
            return (await asyncio.wait_for(read_answer(reader), 15))[0], ""
        return 0, ""
    finally:
        await close(writer)


async def _odd_paths(port: int, rng: random.Random) -> tuple[int, str]:
    method = rng.choice(("GET", "PUT", "DELETE", "OPTIONS", "HEAD", "TRACE", "CONNECT", "PATCH"))
    path = rng.choice(
        (
            "/v1/responses/%00",
            "/v1/responses/../health",
            "//",
            "/%ff",
            "*",
            "http://evil/health",
            "/health?" + "a" * 60_000,
            "/v1/models/lily-tiny",
            "/v1/responses/x/input_items?limit=-1&after=%00",
            "/metrics",
            "/openapi.json",
        )
    )
    return await _send(port, head(path, 0, "Connection: close", method=method))


async def _pipelined(port: int, rng: random.Random) -> tuple[int, str]:
    """Several requests at once; the answers come in their order."""
    reader, writer = await connect(port)
    try:
        for number in range(5):
            writer.write(request_bytes("/tokenize", {"prompt": "a " * (number + 1)}))
        counts = []
        for _ in range(5):
            status, body = await read_answer(reader)
            if status != 200:
                return status, _error_in(body, status)
            counts.append(len(json.loads(body)["tokens"]))
        return (200, "") if counts == sorted(counts) else (999, f"answers in another order: {counts}")
    finally:
        await close(writer)


KINDS: tuple[Client, ...] = (
    *(_valid, _valid, _valid, _mutated, _mutated, _mutated, _mutated, _broken, _half_sent, _left, _left, _slow_reader),
    *(_slow_writer, _huge, _garbage, _odd_paths, _pipelined),
)
