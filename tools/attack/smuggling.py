"""Requests of which two programs could disagree where they end: what is hidden in them is not answered."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

from .figures import Figures
from .limits import Limits
from .raw_http import close, connect
from .served import serving

__all__ = ["attack"]

WAIT_SECONDS = 3.0
HIDDEN = b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
JSON = b'{"prompt": "a"}'
LINE = b"POST /tokenize HTTP/1.1\r\n"
HEAD = LINE + b"Host: 127.0.0.1\r\nContent-Type: application/json\r\n"
CHUNKED = b"%x\r\n%s\r\n0\r\n\r\n" % (len(JSON), JSON)
LENGTH = b"Content-Length: %d\r\n" % len(JSON)


@dataclass(frozen=True)
class Case:
    """What is sent; whether it is a proper request, followed by another one."""

    name: str
    data: bytes
    is_proper: bool = False
    has_one_reading: bool = False  # it may be taken or refused: RFC 9112 lets a server do either


def _with(
    name: str, fields: bytes, body: bytes = CHUNKED, *, is_proper: bool = False, one_reading: bool = False
) -> Case:
    return Case(name, HEAD + fields + b"\r\n" + body + HIDDEN, is_proper, one_reading)


def _chunk(name: str, size: bytes, *, after: bytes = b"\r\n0\r\n\r\n", **more: bool) -> Case:
    body = size + b"\r\n" + JSON + after
    return _with(f"chunk size {name}", b"Transfer-Encoding: chunked\r\n", body, **more)


CASES = (
    _with("length", LENGTH, JSON, is_proper=True),
    _with("chunked", b"Transfer-Encoding: chunked\r\n", is_proper=True),
    _with("length and chunked", LENGTH + b"Transfer-Encoding: chunked\r\n"),
    _with("chunked and length", b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n"),
    _with("length 0 and chunked", b"Content-Length: 0\r\nTransfer-Encoding: chunked\r\n"),
    _with("xchunked", b"Transfer-Encoding: xchunked\r\n"),
    _with("identity", b"Transfer-Encoding: identity\r\n" + LENGTH, JSON),
    _with("chunked, identity", b"Transfer-Encoding: chunked, identity\r\n"),
    _with("gzip, chunked", b"Transfer-Encoding: gzip, chunked\r\n"),
    _with("chunked twice", b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"),
    _with("chunked, chunked", b"Transfer-Encoding: chunked, chunked\r\n"),
    _with("chunked and x", b"Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n"),
    _with("space before the colon", b"Transfer-Encoding : chunked\r\n" + LENGTH, JSON),
    _with("space before the name", b" Transfer-Encoding: chunked\r\n" + LENGTH, JSON, one_reading=True),
    _with("tab before the value", b"Transfer-Encoding:\tchunked\r\n" + LENGTH, JSON),
    _with("vertical tab", b"Transfer-Encoding: \x0bchunked\r\n" + LENGTH, JSON),
    _with("folded", b"Transfer-Encoding:\r\n chunked\r\n" + LENGTH, JSON),
    _with("quoted", b'Transfer-Encoding: "chunked"\r\n' + LENGTH, JSON),
    _with("NUL in a name", b"Transfer-Encoding\0: chunked\r\n" + LENGTH, JSON),
    _with("NUL in a value", b"Transfer-Encoding: chunked\0\r\n" + LENGTH, JSON),
    _with("bare CR", b"X: a\rTransfer-Encoding: chunked\r\n" + LENGTH, JSON),
    _with("bare LF", b"X: a\nTransfer-Encoding: chunked\r\n" + LENGTH, JSON),
    _with("two lengths", LENGTH + b"Content-Length: 0\r\n", JSON),
    _with("the same length twice", LENGTH + LENGTH, JSON, one_reading=True),
    _with("a list of lengths", b"Content-Length: 15, 15\r\n", JSON, one_reading=True),
    _with("length with a sign", b"Content-Length: +15\r\n", JSON),
    _with("negative length", b"Content-Length: -15\r\n", JSON),
    _with("hexadecimal length", b"Content-Length: 0xf\r\n", JSON),
    _with("length with a space", b"Content-Length: 1 5\r\n", JSON),
    _with("length with an underscore", b"Content-Length: 1_5\r\n", JSON),
    _with("Arabic digits", "Content-Length: ١٥\r\n".encode(), JSON),
    _with("empty length", b"Content-Length: \r\n", JSON),
    _with("huge length", b"Content-Length: 18446744073709551631\r\n", JSON),
    _with("length too large for a body", b"Content-Length: 99999999999\r\n", JSON),
    _with("two hosts", b"Host: evil\r\n" + LENGTH, JSON),
    _with("expect", b"Expect: 100-continue\r\nExpect: x\r\nTransfer-Encoding: x\r\n" + LENGTH, JSON),
    _with(
        "upgrade",
        b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAAA\r\nTransfer-Encoding: x\r\n",
        JSON,
    ),
    _chunk("f;a=b", b"f;a=b", is_proper=True),
    _chunk("0xf", b"0xf"),
    _chunk("+f", b"+f"),
    _chunk("-f", b"-f"),
    _chunk("f_", b"f_"),
    _chunk("with a space", b" f"),
    _chunk("empty", b""),
    _chunk("2**64 and f", b"1000000000000000f"),
    _chunk("f and LF", b"f\n" + JSON),
    _chunk("without an end", b"f", after=b"XX0\r\n\r\n"),
    _chunk("ended by LF", b"f", after=b"\n0\r\n\r\n"),
    _chunk("endless extension", b"f;" + b"a" * 100_000, one_reading=True),
    Case("LF for CRLF", (HEAD + LENGTH + b"\r\n").replace(b"\r\n", b"\n") + JSON + HIDDEN, has_one_reading=True),
    Case(
        "HTTP/1.0 and chunked",
        HEAD.replace(b"1.1", b"1.0", 1) + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKED + HIDDEN,
    ),
    Case("HTTP/0.9", b"GET /health\r\n" + HIDDEN),
    Case("HTTP/1.2", LINE.replace(b"1.1", b"1.2") + b"Host: 127.0.0.1\r\nTransfer-Encoding: x\r\n\r\n" + HIDDEN),
    Case(
        "body refused early",
        HEAD.replace(b"/tokenize", b"/nothing") + b"Content-Length: %d\r\n\r\n" % len(HIDDEN) + HIDDEN,
    ),
    Case(
        "body of a GET",
        HIDDEN.replace(b"metrics", b"health")[:-2] + b"Content-Length: %d\r\n\r\n" % len(HIDDEN) + HIDDEN,
    ),
    Case("wrong host", HEAD.replace(b"127.0.0.1", b"evil.com") + b"Content-Length: %d\r\n\r\n" % len(HIDDEN) + HIDDEN),
    Case(
        "no JSON",
        HEAD.replace(b"application/json", b"text/plain") + b"Content-Length: %d\r\n\r\n" % len(HIDDEN) + HIDDEN,
    ),
    Case("web page", HEAD + b"Origin: http://evil.com\r\nContent-Length: %d\r\n\r\n" % len(HIDDEN) + HIDDEN),
)


def attack(limits: Limits) -> Figures:
    """Send each case; later rounds send it in parts."""
    figures = Figures("smuggling")
    with serving(figures, "--context", "512") as server:
        for seed in limits.seeds():
            if limits.is_over:
                break
            case = CASES[seed % len(CASES)]
            answer = asyncio.run(_answers(server.port, case.data, 1 + seed // len(CASES) * 40))
            figures.count(_judged(case, answer), f"{case.name}: {answer.count(b'HTTP/1.1 ')} answers, {answer[:60]!r}")
    return figures


def _judged(case: Case, answer: bytes) -> str:
    if case.is_proper:
        return "fine" if answer.count(b"HTTP/1.1 200") == 2 else "raw: a proper request was not answered"
    if b"lily_requests_total" in answer and not case.has_one_reading:
        return "raw: the hidden request was answered"
    return "raw: status 500" if b"HTTP/1.1 500" in answer else "refused"


async def _answers(port: int, data: bytes, parts: int) -> bytes:
    """All that comes back until the connection is closed, or nothing more comes."""
    reader, writer = await connect(port)
    received = b""
    try:
        size = max(1, len(data) // parts)
        for at in range(0, len(data), size):
            writer.write(data[at : at + size])
            await writer.drain()
            await asyncio.sleep(0.001)
        with contextlib.suppress(asyncio.TimeoutError):
            while part := await asyncio.wait_for(reader.read(1 << 20), WAIT_SECONDS):
                received += part
                if b"lily_requests_total" in received:
                    break
    except OSError:
        pass
    finally:
        await close(writer)
    return received
