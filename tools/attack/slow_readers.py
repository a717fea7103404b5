"""Clients that read slowly get their whole answer, those that read nothing are cut off and forgotten."""

from __future__ import annotations

import asyncio
import time

from .figures import MIB, Figures
from .limits import Limits
from .raw_http import Streams, close, connect, request_bytes
from .served import Served, serving

__all__ = ["attack"]

WRITE_SECONDS = 30  # write_seconds, for which the command has no option
MARGIN_SECONDS = 20
LONGEST_TOKEN = 2878  # 32 spaces
ANSWER = {"tokens": [LONGEST_TOKEN] * 250_000}  # its text takes more than the system's buffers hold
TRIES = 60
AT_ONCE = 4  # all of which fit in the server's memory for requests


def attack(limits: Limits) -> Figures:
    """Readers of all kinds, side by side."""
    figures = Figures("slow")
    with serving(figures, "--context", "1024", "--cache-gb", "0.05", grows=96 * MIB) as server:
        asyncio.run(_readers(figures, limits, server))
    return figures


async def _readers(figures: Figures, limits: Limits, server: Served) -> None:
    kinds = (_reads_steadily, _reads_little, _reads_nothing, _stops_reading)

    turns = asyncio.Semaphore(AT_ONCE)

    async def one(seed: int) -> None:
        kind = kinds[seed % len(kinds)]
        async with turns:
            figures.count(await kind(server.port), f"seed {seed}, {kind.__name__.strip('_')}")

    await asyncio.gather(*(one(seed) for seed in limits.seeds()))


async def _begin(port: int) -> Streams:
    """The answer has begun when this returns."""
    for _ in range(TRIES):
        reader, writer = await connect(port, receive_buffer=4096)
        writer.write(request_bytes("/detokenize", ANSWER))
        await writer.drain()
        line = await asyncio.wait_for(reader.readline(), 60)
        if b" 200 " in line:
            return reader, writer
        await close(writer)
        await asyncio.sleep(2)  # others hold the memory that is there for requests
    raise RuntimeError(f"no answer to read: {line!r}")


async def _reads_steadily(port: int) -> str:
    """Twice as long as a client may read nothing, until the end."""
    reader, writer = await _begin(port)
    received, started = b"", time.monotonic()
    try:
        while not received.endswith(b"}"):
            part = await asyncio.wait_for(
                reader.read(4096 if time.monotonic() - started < 2 * WRITE_SECONDS else MIB), 60
            )
            if not part:
                return f"raw: cut off after {time.monotonic() - started:.0f} s"
            received = received[-200:] + part
            if time.monotonic() - started < 2 * WRITE_SECONDS:
                await asyncio.sleep(0.1)
        return "fine"
    finally:
        await close(writer)


async def _reads_little(port: int) -> str:
    """4 KB in five seconds."""
    reader, writer = await _begin(port)
    try:
        for _ in range(15):
            if not await asyncio.wait_for(reader.read(4096), 60):
                return "raw: cut off although it read"
            await asyncio.sleep(5)
        return "fine"
    finally:
        await close(writer)


async def _is_cut_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    """Whether the answer, after a time without reading, ends before it is complete."""
    try:
        await asyncio.sleep(WRITE_SECONDS + MARGIN_SECONDS)
        size = 0
        tail = b""
        while part := await asyncio.wait_for(reader.read(MIB), 10):
            size += len(part)
            tail = (tail + part)[-200:]
            if tail.endswith((b"]}", b"}", b"0\r\n\r\n")):
                return f"raw: it was served {size} bytes to the end although it read nothing"
        return "refused"
    except (OSError, asyncio.TimeoutError) as error:
        return "refused" if isinstance(error, ConnectionError) else "raw: neither cut off nor served"
    finally:
        await close(writer)


async def _reads_nothing(port: int) -> str:
    return await _is_cut_off(*await _begin(port))


async def _stops_reading(port: int) -> str:
    reader, writer = await _begin(port)
    await asyncio.wait_for(reader.read(4096), 60)
    return await _is_cut_off(reader, writer)
