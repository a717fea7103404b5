"""Clients that read late or slowly get the whole of their answer."""

import os
import time

import pytest

pytest.importorskip("lily._core", reason="needs the built package")
pytest.importorskip("starlette", reason="needs the extra for the server")

from lily.server import ServerOptions
from lily.server.protocol import ConnectionLimits
from served import everything, request, served

pytestmark = pytest.mark.skipif(os.name != "posix", reason="sends signals")

LARGE = request("POST", "/tokenize", {"prompt": "\u00e9" * 520_000}, ["Connection: close"])  # answered by megabytes
WRITE_SECONDS = 4.0


@pytest.fixture(scope="module")
def server():
    with served(write_seconds=WRITE_SECONDS, idle_seconds=0.3, max_pending_bytes=1 << 30) as one:
        yield one


def whole(answer):
    """Whether as many bytes came as were announced."""
    head, _, body = answer.partition(b"\r\n\r\n")
    return len(body) == int(head.lower().partition(b"content-length:")[2].split()[0]) > 4_000_000


@pytest.mark.parametrize("buffer", [None, 4096])
def test_one_that_reads_late(server, buffer):
    with server.connect(LARGE, receive_buffer=buffer) as connection:
        begun = connection.recv(1)
        time.sleep(WRITE_SECONDS / 2)  # several looks of the server
        assert whole(begun + everything(connection))


@pytest.mark.parametrize("head", [LARGE, LARGE.replace(b"Connection: close\r\n", b"")])
def test_one_that_reads_slowly_and_steadily(server, head):
    """Slower than the system's buffer asks for more, longer than a client may take nothing, and than it may be idle."""
    answer = b""
    with server.connect(head) as connection:
        answer += connection.recv(1 << 12)
        end = time.monotonic() + 1.5 * WRITE_SECONDS
        while time.monotonic() < end:
            answer += connection.recv(1 << 14)
            time.sleep(0.1)
        assert whole(answer + everything(connection))


def test_an_answer_that_is_not_taken_yet_does_not_make_room():
    """Its request is over for the server, but not for the client."""

    class Connection:
        idle = True
        lingers = False
        idle_since = 0.0

        def __init__(self, unsent):
            self.unsent, self.aborted = unsent, False
            self.transport = self.lingering = self
            self.loop = self

        def is_closing(self):
            return self.aborted

        def abort(self):
            self.aborted = True

        def call_later(self, *_):
            return self

    limits = ConnectionLimits(ServerOptions(), most=2)
    reading, silent, new = connections = [Connection(1), Connection(0), Connection(0)]
    assert limits.admit(new, connections)
    assert [one.aborted for one in connections] == [False, True, False]
    silent.aborted, silent.unsent = False, 1
    assert not limits.admit(new, connections)
    assert not reading.aborted
