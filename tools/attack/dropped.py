"""Clients that leave the queue behind a long answer, and texts that are encoded at once: memory is bounded."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Callable, Coroutine
from typing import Any

from .figures import MIB, Figures
from .limits import Limits
from .memory import peak_bytes, rss_bytes
from .raw_http import close, connect, read_answer, request_bytes
from .served import Served, serving

__all__ = ["attack", "attack_encoding"]

PENDING = 256 * MIB  # --max-pending-mb
BESIDE = 192 * MIB  # sessions, the allocator, and what is being freed
GROWS = 128 * MIB
CLIENTS, TEXT_BYTES = 60, 1_200_000
PROPER = {0, 200, 400, 413, 429, 503}
TEXTS = ("🙂" * 250_000, "x" * 1_000_000, "é " * 330_000, "<|im_" * 190_000, "漢字" * 160_000, "1 " * 500_000)


def attack(limits: Limits) -> Figures:
    """Waves of clients with large bodies that leave before their turn."""
    return _judged("dropped", _waves, limits)


def attack_encoding(limits: Limits) -> Figures:
    """Texts that are costly to encode, many at once."""
    return _judged("encoding", _encode, limits)


def _judged(
    name: str, clients: Callable[[Figures, Limits, Served], Coroutine[Any, Any, None]], limits: Limits
) -> Figures:
    figures = Figures(name)
    with serving(figures, "--context", "8192", "--cache-gb", "0.05", grows=GROWS) as server:
        before = rss_bytes(server.process.pid)
        asyncio.run(clients(figures, limits, server))
        took = peak_bytes(server.process.pid) - before
        if took > PENDING + BESIDE:
            figures.broken(f"it took {took / MIB:.0f} MiB, more than --max-pending-mb and {BESIDE // MIB} MiB")
    return figures


async def _waves(figures: Figures, limits: Limits, server: Served) -> None:
    occupied = asyncio.create_task(_long_answers(server.port))
    seeds = iter(limits.seeds())

    async def client() -> None:
        for seed in seeds:
            if limits.is_over or server.process.poll() is not None:
                return
            try:
                figures.count(await _leaves(server.port, random.Random(seed)), f"seed {seed}")
            except OSError:
                figures.count("refused")

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    occupied.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await occupied


async def _long_answers(port: int) -> None:
    """Keep the engine busy."""
    body = {
        "prompt": "Once upon a time",
        "max_tokens": 8000,
        "stream": True,
        "logit_bias": {"4063": -100, "4065": -100},
    }
    while True:
        reader, writer = await connect(port)
        try:
            writer.write(request_bytes("/v1/completions", body))
            while await reader.read(1 << 16):
                pass
        finally:
            await close(writer)


async def _leaves(port: int, rng: random.Random) -> str:
    """Send a large request, stay a moment, and leave."""
    content = (
        " ".join(str(rng.random()) for _ in range(TEXT_BYTES // 20))
        if rng.random() < 0.2
        else "word " * (TEXT_BYTES // 5)
    )
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 5, "stream": rng.random() < 0.5}
    reader, writer = await connect(port)
    try:
        writer.write(request_bytes("/v1/chat/completions", body))
        await writer.drain()
        with contextlib.suppress(asyncio.TimeoutError):
            status, _ = await asyncio.wait_for(read_answer(reader), rng.random() * 2)
            return "fine" if status == 200 else "refused" if status in PROPER else f"raw: status {status}"
        return "fine"  # it left
    finally:
        if rng.random() < 0.5:
            writer.transport.abort()
        await close(writer)


async def _encode(figures: Figures, limits: Limits, server: Served) -> None:
    seeds = iter(limits.seeds())

    async def client() -> None:
        for seed in seeds:
            if limits.is_over or server.process.poll() is not None:
                return
            text = TEXTS[seed % len(TEXTS)]
            path, body = (
                ("/tokenize", {"prompt": text}),
                ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": text}]}),
                ("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], "max_tokens": 2}),
            )[seed // len(TEXTS) % 3]
            reader, writer = await connect(server.port)
            try:
                writer.write(request_bytes(path, json.dumps(body, ensure_ascii=False).encode()))
                await writer.drain()
                status, answer = await read_answer(reader)
            except ConnectionError:
                status, answer = 0, b""
            finally:
                await close(writer)
            proper = (
                "fine" if status == 200 else "refused" if status in PROPER else f"raw: status {status} {answer[:200]!r}"
            )
            figures.count(proper, f"seed {seed}, {path}")

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
