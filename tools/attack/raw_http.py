"""HTTP by hand, over asyncio's streams: what no proper client would send."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

__all__ = ["close", "connect", "head", "read_answer", "request_bytes"]

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
READ_LIMIT = 1 << 24


async def connect(port: int, *, receive_buffer: int | None = None) -> Streams:
    """A connection to the server; with a small buffer of the system if one is given."""
    import socket

    if receive_buffer is None:
        return await asyncio.open_connection("127.0.0.1", port, limit=READ_LIMIT)
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    made.setblocking(False)
    await asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", port))
    return await asyncio.open_connection(sock=made, limit=receive_buffer)


async def close(writer: asyncio.StreamWriter) -> None:
    """Close without a word."""
    writer.close()
    with contextlib.suppress(OSError, asyncio.TimeoutError):
        await asyncio.wait_for(writer.wait_closed(), 5)


def head(path: str, length: int | str | None, *more: str, method: str = "POST") -> bytes:
    """The head of a request."""
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", *more]
    if length is not None:
        lines.append(f"Content-Length: {length}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")


def request_bytes(path: str, body: Any, *more: str) -> bytes:
    """A whole request with a JSON body, or with one that is given as bytes."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return head(path, len(content), *more) + content


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Status and body of the next answer; status 0 if the connection was closed before it."""
    try:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return 0, b""
    status = int(lines[0].split()[1])
    fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        if "content-length" in fields:
            return status, await reader.readexactly(int(fields["content-length"]))
        if "chunked" in fields.get("transfer-encoding", ""):
            return status, await _chunks(reader)
        return status, await reader.read()
    return status, b""


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    parts = []
    while size := int((await reader.readuntil(b"\r\n")).strip() or b"0", 16):
        parts.append(await reader.readexactly(size))
        await reader.readexactly(2)
    await reader.readuntil(b"\r\n")
    return b"".join(parts)
