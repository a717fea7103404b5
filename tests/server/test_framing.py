"""Where a request ends: what was refused before its body was read takes its connection along."""

import os
import signal
import time

import pytest

pytest.importorskip("lily._core", reason="needs the built package")
pytest.importorskip("starlette", reason="needs the extra for the server")

from served import CHAT, MESSAGES, everything, parsed, request, served

pytestmark = pytest.mark.skipif(os.name != "posix", reason="sends signals")

SECOND = request("GET", "/v1/models")
KEY = b"Authorization: Bearer one\r\n"
HIDDEN = b"0\r\n\r\n" + SECOND  # a body by its length, the end of one and a request by its chunks
POST = b"POST %s HTTP/1.1\r\nHost: localhost\r\n"
REFUSED = {
    "length and chunks": (KEY + b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
    "chunks and length": (KEY + b"Transfer-Encoding: chunked\r\nContent-Length: %d\r\n\r\n", 400),
    "two lengths": (KEY + b"Content-Length: %d\r\nContent-Length: 3\r\n\r\n", 400),
    "compressed": (KEY + b"Content-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n", 415),
    "too long": (KEY + b"Content-Length: 999999%d\r\n\r\n", 413),
    "wrong chunk": (KEY + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
    "chunks of another kind": (KEY + b"Transfer-Encoding: gzip, chunked\r\n\r\n", 400),
    "no key": (b"Transfer-Encoding: chunked\r\n\r\n", 401),
    "another origin": (KEY + b"Origin: http://a.example\r\nTransfer-Encoding: chunked\r\n\r\n", 403),
}


@pytest.fixture(scope="module")
def server():
    with served(api_keys=["one"], max_request_bytes=1 << 20, body_seconds=1) as one:
        yield one
        one.end(signal.SIGTERM, seconds=30)
        assert "Traceback" not in one.log()


def answered(server, data):
    """The statuses of all answers, until the server closes, which it must do long before a connection is idle."""
    with server.connect(data) as connection:
        connection.settimeout(10)
        answer = everything(connection)
    assert answer.lower().count(b"connection: close") == answer.count(b"HTTP/1.1 ")
    return [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]]


@pytest.mark.parametrize("path", [CHAT, MESSAGES, "/tokenize", "/nowhere", "/health"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_follows_a_refusal_is_no_request(server, name, path):
    head, status = REFUSED[name]
    if b"%d" in head:
        head = head.replace(b"%d", b"%d" % len(HIDDEN))
    got = answered(server, POST % path.encode() + head + HIDDEN)
    # What HTTP or web pages of elsewhere must not do is refused before anybody looks at the path.
    told = status if status in (400, 403) else {"/nowhere": 404, "/health": 405}.get(path, status)
    assert got == [told]


def test_what_follows_a_body_that_came_too_late_is_no_request(server):
    head = POST % CHAT.encode() + KEY + b"Transfer-Encoding: chunked\r\n\r\n5\r\n12"
    assert answered(server, head) == [408]


@pytest.mark.parametrize("head", [b"GET /health", b"HEAD /health", b"OPTIONS /health", b"DELETE /v1/responses/a"])
def test_a_body_that_nobody_reads_ends_the_connection(server, head):
    length = b" HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert len(answered(server, head + length + HIDDEN)) == 1


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("path", [CHAT, "/nowhere", "/health"])
def test_a_client_that_sends_all_of_a_long_body_first_reads_its_refusal(server, path, chunked):
    """The body is read and dropped, though it was refused at its head or on the way."""
    body = b" " * (3 << 20)
    how = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" if chunked else b"Content-Length: %d\r\n\r\n"
    with server.connect(POST % path.encode() + KEY + how % len(body)) as connection:
        for start in range(0, len(body), 1 << 18):
            connection.sendall(body[start : start + (1 << 18)])
            time.sleep(0.01)
        status, answer = parsed(everything(connection))
    assert status == {CHAT: 413, "/nowhere": 404, "/health": 405}[path]
    assert answer.endswith(b"}")


def test_a_request_that_was_read_keeps_its_connection(server):
    """Also one that is refused for what it says."""
    wrong = request("POST", CHAT, b"{", ["Authorization: Bearer one"])
    with server.connect(wrong * 2 + SECOND + request("GET", "/health", None, ["Connection: close"])) as connection:
        answer = everything(connection)
    assert [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]] == [400, 400, 401, 200]
