"""A server in a process of its own, and raw connections to it."""

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
HELLO = [{"role": "user", "content": "Hello"}]
PROGRAM = Path(__file__).with_name("served_process.py")


class Served:
    """The process, its log so far, and ways to ask it."""

    def __init__(self, process):
        self.process = process
        self.lines = []
        self.port = None
        for line in process.stderr:
            self.lines.append(line)
            found = re.search(r"running on http://127\.0\.0\.1:(\d+)", line)
            if found:
                self.port = int(found[1])
                break
        assert self.port, self.lines
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self):
        self.lines.extend(self.process.stderr)

    def log(self):
        """The log of a process that has ended."""
        self._reading.join(30)
        return "".join(self.lines)

    def connect(self, data=b"", receive_buffer=None):
        connection = socket.socket()
        if receive_buffer is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.settimeout(60)
        connection.connect(("127.0.0.1", self.port))
        connection.sendall(data)
        return connection

    def ask(self, method, path, body=None, headers=()):
        """The status, and the whole rest as bytes; on a connection of its own."""
        with self.connect(request(method, path, body, [*headers, "Connection: close"])) as connection:
            return parsed(everything(connection))

    def health(self):
        return json.loads(self.ask("GET", "/health")[1])

    def wait_until(self, condition, seconds=60):
        end = time.monotonic() + seconds
        while not condition(health := self.health()):
            assert time.monotonic() < end, health
            time.sleep(0.02)

    def resident_bytes(self, field="VmRSS"):
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("the system does not tell")

    def end(self, *signals, seconds):
        """Send signals, a moment apart; the seconds until the process ended."""
        began = time.monotonic()
        for number in signals:
            self.process.send_signal(number)
            time.sleep(0.3)
        self.process.wait(seconds)
        return time.monotonic() - began


@contextlib.contextmanager
def served(*faults, context=4096, **options):
    """A server with options of ServerOptions, and faults of `served_process.py`."""
    given = json.dumps({"options": options, "context": context, "faults": faults})
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(PROGRAM.parents[1]), str(PROGRAM.parent), *sys.path]),
    }
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), given],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        text=True,
        env=environment,
    )
    try:
        yield Served(process)
    finally:
        process.kill()
        process.wait()


def request(method, path, body=None, headers=(), version="1.1"):
    """The bytes of a request; a body that is no bytes is sent as JSON."""
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/{version}", "Host: 127.0.0.1", *headers]
    if body is not None:
        lines.append(f"Content-Length: {len(data)}")
    return "\r\n".join([*lines, "", ""]).encode() + data


def everything(connection):
    """What comes until the other side closes."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(1 << 16):
            data += part
    return data


def parsed(answer):
    """The status of an answer and its body, chunks joined."""
    head, _, body = answer.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" in head.lower():
        body = b"".join(re.split(rb"(?:^|\r\n)[0-9a-f]+\r\n", body)).removesuffix(b"\r\n")
    return int(head.split()[1]) if head else None, body


def is_open(connection):
    """Whether the other side has not closed; what it sent is read and dropped."""
    connection.settimeout(0)
    try:
        while connection.recv(1 << 16):
            pass
    except BlockingIOError:
        return True
    except ConnectionError:
        return False
    return False


def wait_until_closed(connection, seconds=60):
    end = time.monotonic() + seconds
    while is_open(connection):
        assert time.monotonic() < end
        time.sleep(0.02)
