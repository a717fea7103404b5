"""What clients can do to connections: say nothing, say it slowly, say what is no HTTP, or not listen."""

import json
import logging
import os
import signal
import time

import pytest

pytest.importorskip("lily._core", reason="needs the built package")
pytest.importorskip("starlette", reason="needs the extra for the server")

from lily.server import run
from served import CHAT, HELLO, everything, is_open, parsed, request, served, wait_until_closed

pytestmark = pytest.mark.skipif(os.name != "posix", reason="sends signals")

SHORT = {"messages": HELLO, "max_tokens": 1}
LONG = {"messages": HELLO, "max_tokens": 3000}
MOST = 24
LIMITS = {
    "head_seconds": 0.5,
    "body_seconds": 0.5,
    "idle_seconds": 0.5,
    "write_seconds": 0.5,
    "max_connections": MOST,
    "max_request_bytes": 1 << 20,
    "shutdown_seconds": 1,
}


@pytest.fixture(scope="module")
def server():
    with served("endless_answers", **LIMITS) as one:
        yield one
        one.end(signal.SIGTERM, seconds=30)
        log = one.log()
        assert "Traceback" not in log
        assert all(len(line) < 500 and line[:-1].isprintable() for line in one.lines)


def idle(health):
    return health["running"] == health["waiting"] == 0


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"", None),
        (b"P", 408),
        (b"GET /health HTTP/1.1\r\nHost: x", 408),
        (request("GET", "/health") + b"GET /health HTTP/1.1\r\n", 200),  # a half head on a kept connection
        (request("POST", CHAT, SHORT)[:-1], 408),
        (b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n12", 408),
        (b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n", 100),
        # The answer does not wait for these bodies, and nobody else does.
        (b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{", 404),
        (b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\n{", 413),
    ],
)
def test_what_is_not_completed_is_closed(server, data, status):
    with server.connect(data) as connection:
        assert parsed(everything(connection))[0] == status


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health HTTP/1.1\r\nX: ",
        b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nfffff\r\n",
    ],
)
def test_what_comes_byte_by_byte_is_closed(server, head):
    with server.connect(head) as connection:
        end = time.monotonic() + 60
        try:
            while is_open(connection):
                assert time.monotonic() < end
                connection.settimeout(60)
                connection.sendall(b" ")
                time.sleep(0.05)
        except ConnectionError:
            pass


def test_a_long_body_may_take_its_time(server):
    """What keeps coming is not cut after the time in which the first part must come."""
    data = request("POST", "/tokenize", {"prompt": "a " * 100_000})
    with server.connect() as connection:
        for start in range(0, len(data), 20_000):
            connection.sendall(data[start : start + 20_000])
            time.sleep(0.1)
        status, body = parsed(connection.recv(1 << 16) + everything(connection))
    assert status == 200
    assert json.loads(body)["count"] > 50_000


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_too_long_is_refused_while_it_comes(server, chunked):
    head = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % (64 << 20)
    with server.connect(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n" + head + b"\r\n\r\n") as connection:
        part = b"10000\r\n" + b" " * (1 << 16) + b"\r\n"
        sent = 0
        try:
            while sent < 64 << 20 and is_open(connection):
                connection.settimeout(60)
                connection.sendall(part)
                sent += len(part)
        except ConnectionError:
            pass
    assert sent < 64 << 20
    assert server.health()["status"] == "ok"


def test_idle_connections_make_room(server):
    silent = [server.connect() for _ in range(3 * MOST)]
    assert server.health()["status"] == "ok"
    assert sum(map(is_open, silent)) <= MOST
    for connection in silent:
        wait_until_closed(connection)


def test_connections_in_use_do_not(server):
    body = request("POST", CHAT, {**LONG, "stream": True})
    streams = [server.connect(body) for _ in range(MOST - 1)]
    server.wait_until(lambda health: health["running"] + health["waiting"] == MOST - 1)
    last = server.connect(body)
    end = time.monotonic() + 60
    while (status := server.ask("GET", "/health")[0]) == 200:
        assert time.monotonic() < end
        if not is_open(last):  # its request was not there yet, so it made room
            last = server.connect(body)
    assert status == 503
    for stream in (*streams, last):
        stream.close()
    while True:  # until they were noticed to have gone
        assert time.monotonic() < end
        status, answer = server.ask("GET", "/health")
        if status == 200 and idle(json.loads(answer)):
            break


def test_a_client_that_does_not_read_is_given_up(server):
    """What it does not read is more than the system keeps for it."""
    with server.connect(request("GET", "/openapi.json") * 800, receive_buffer=4096) as connection:
        end = time.monotonic() + 60
        with pytest.raises(ConnectionError):
            while time.monotonic() < end:
                connection.sendall(b"G")
                time.sleep(0.05)


@pytest.mark.parametrize("more", [b"GET /health HTTP/1.1\r\n", request("GET", "/health") * 3, b"\0" * 100])
def test_a_client_that_sends_more_and_goes_is_noticed(server, more):
    with server.connect(request("POST", CHAT, LONG) + more) as connection:
        server.wait_until(lambda health: health["running"])
        connection.sendall(more)
        time.sleep(0.2)
    server.wait_until(idle)


def test_a_client_cannot_send_without_end_while_it_waits(server):
    with server.connect(request("POST", CHAT, LONG)) as connection, pytest.raises(ConnectionError):
        for _ in range(1000):
            connection.sendall(request("GET", "/health") * 500)
    server.wait_until(idle)


def test_pipelined_requests_are_all_answered(server):
    data = request("GET", "/health") * 20 + request("POST", CHAT, SHORT) + request("GET", "/v1/models")
    with server.connect(data) as connection:
        answer = everything(connection)
    assert answer.count(b"HTTP/1.1 200 OK") == 22


POST = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n"
ODD = {
    "two lengths": (
        POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}a",
        400,
    ),
    "length and chunks": (
        POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
    ),
    "length that is none": (POST + b"Content-Length: -1\r\n\r\n", 400),
    "endless length": (
        POST + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n",
        400,
    ),
    "gzip": (
        POST + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n\x1f\x8b",
        415,
    ),
    "wrong chunk": (POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
    "two hosts": (b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: y\r\n\r\n", 400),
    "no host": (b"GET /health HTTP/1.1\r\n\r\n", 400),
    "old": (b"GET /health HTTP/1.0\r\n\r\n", 200),
    "head": (b"HEAD /health HTTP/1.1\r\nHost: localhost\r\n\r\n", 200),
    "options": (b"OPTIONS /health HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
    "odd method": (b"BREW /health HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
    "connect": (b"CONNECT a.example:443 HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
    "absolute": (b"GET http://a.example/health HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
    "no body": (POST + b"\r\n", 400),
    "form": (
        POST + b"Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 5\r\n\r\n--x--",
        400,
    ),
    "long path": (b"GET /" + b"a" * 10_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
    "long query": (b"GET /health?" + b"a=%0a&" * 2000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 200),
    "control characters": (b"GET /%0d%0aINFO:%1b[31m HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
    "no UTF-8": (b"GET /v1/models/%ff%fe HTTP/1.1\r\nHost: localhost\r\n\r\n", 200),
    "many headers": (b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * 100_000 + b"\r\n", 400),
    "odd host": (b"GET /nowhere HTTP/1.1\r\nHost: [\r\n\r\n", 403),
    "slash": (b"GET /health/ HTTP/1.1\r\nHost: localhost\r\n\r\n", 200),
    "garbage": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\r\n\r\n", 400),
    "websocket": (
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
        200,
    ),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_requests(server, name):
    data, status = ODD[name]
    before = len(server.lines)
    with server.connect() as connection:
        try:
            connection.sendall(data)
        except ConnectionError:
            assert name == "many headers"
            return
        answer = everything(connection)
    if answer or name != "many headers":
        assert parsed(answer)[0] == status
    server.health()
    assert len(server.lines) - before <= 3  # at most one line, besides that of the request for the health


def test_the_access_log_has_no_query(caplog):
    """Some clients send their key there."""
    with run._short_access_log(), caplog.at_level(logging.INFO, logger="uvicorn.access"):
        for path in ("/v1/models?api_key=secret", f"/{'a' * 500}?key=secret"):
            logging.getLogger("uvicorn.access").info('%s - "%s %s HTTP/%s" %d', "127.0.0.1:1", "GET", path, "1.1", 200)
    first, second = [record.getMessage() for record in caplog.records]
    assert first == '127.0.0.1:1 - "GET /v1/models HTTP/1.1" 200'
    assert "secret" not in second and len(second) < 300


def test_requests_that_fail_leave_one_line_each(server):
    deep = b'{"messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    digits = b'{"prompt":"a","seed":' + b"9" * 5000 + b"}"
    bodies = [deep, digits, b"{" * 90_000, b"\xff" * 1000, b"[NaN]", b'{"a":1e999}']
    before = len(server.lines)
    for body in bodies:
        for path in (CHAT, "/v1/messages", "/v1/responses", "/v1/completions", "/tokenize"):
            if body is not digits or path == "/v1/completions":
                assert server.ask("POST", path, body)[0] == 400, (path, body[:40])
    server.health()
    time.sleep(0.2)
    assert len(server.lines) - before <= 5 * len(bodies) + 1
