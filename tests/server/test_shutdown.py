"""A server that is told to stop ends in time, whatever its requests do, and tells its clients."""

import os
import signal
import socket
import time

import pytest

pytest.importorskip("lily._core", reason="needs the built package")
pytest.importorskip("starlette", reason="needs the extra for the server")

from served import CHAT, HELLO, MESSAGES, RESPONSES, everything, parsed, request, served

pytestmark = pytest.mark.skipif(os.name != "posix", reason="sends signals")

SLACK = 20  # seconds: a loaded machine; without an end in time these tests wait for ever
LONG = {"messages": HELLO, "max_tokens": 3000}
ERRORS = {
    CHAT: ('data: {"error":', '"code":"unavailable"'),
    MESSAGES: ('event: error\ndata: {"type":"error",', "overloaded_error"),
    RESPONSES: ("event: response.failed\n", "shutting down"),
}


@pytest.mark.parametrize("told", [signal.SIGTERM, signal.SIGINT])
def test_streams_that_are_cut_end_with_an_error_of_their_api(told):
    bodies = {CHAT: LONG, MESSAGES: LONG, RESPONSES: {"input": "Hello", "max_output_tokens": 3000}}
    with served("endless_answers", shutdown_seconds=1) as server:
        streams = {
            path: server.connect(request("POST", path, {**body, "stream": True})) for path, body in bodies.items()
        }
        whole = server.connect(request("POST", CHAT, LONG))
        server.wait_until(lambda health: (health["running"], health["waiting"]) == (1, 3))
        assert server.end(told, seconds=1 + SLACK) < 1 + SLACK
        assert server.process.returncode == 0
        for path, stream in streams.items():
            status, text = parsed(everything(stream))
            if status == 200:  # else it was still waiting, and no stream had begun
                *_, last = text.decode().strip().split("\n\n")
                assert last.startswith(ERRORS[path][0])
                assert ERRORS[path][1] in last
            else:
                assert status == 503
        assert parsed(everything(whole))[0] == 503
        assert "Traceback" not in server.log()


def test_connections_that_say_nothing_hold_nobody_up():
    with served("endless_answers", shutdown_seconds=1) as server:
        idle = [server.connect() for _ in range(3)]
        idle.append(server.connect(b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127"))
        idle.append(server.connect(request("POST", CHAT, LONG)[:-10]))
        unread = server.connect(request("POST", CHAT, {**LONG, "stream": True}), receive_buffer=4096)
        server.wait_until(lambda health: health["running"])
        server.end(signal.SIGTERM, seconds=1 + SLACK)
        assert server.process.returncode == 0
        assert "Traceback" not in server.log()
        for connection in (*idle, unread):
            connection.close()


@pytest.mark.parametrize(
    ("fault", "path", "body", "code"),
    [
        ("stuck_engine", CHAT, {**LONG, "messages": [{"role": "user", "content": "stick"}]}, 1),
        ("stuck_preparation", "/tokenize", {"prompt": "stick"}, 0),
        ("stuck_loop", CHAT, {**LONG, "stream": True}, 3),
    ],
)
def test_a_call_that_never_ends_does_not_keep_the_process(fault, path, body, code):
    with served(fault, shutdown_seconds=1) as server:
        connection = server.connect(request("POST", path, body))
        time.sleep(0.5)
        if fault != "stuck_loop":
            assert server.health()["status"] == "ok"
        server.end(signal.SIGTERM, seconds=2 + SLACK)
        assert server.process.returncode == code
        if fault != "stuck_loop":
            assert parsed(everything(connection))[0] == 503
        assert "Traceback" not in server.log()


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_the_second_signal_ends_it_at_once(second):
    with served("endless_answers", shutdown_seconds=600) as server:
        stream = server.connect(request("POST", CHAT, {**LONG, "stream": True}))
        server.wait_until(lambda health: health["running"])
        server.end(signal.SIGTERM, second, seconds=SLACK)
        assert server.process.returncode == 0
        assert "Traceback" not in server.log()
        stream.close()


def test_an_application_of_a_host_never_ends_its_process(start, model, monkeypatch):
    """The engine is given up after its time, and the process goes on."""
    import threading

    from lily.text import Tokenizer

    monkeypatch.setattr(os, "_exit", lambda code: pytest.fail("the process was ended"))
    released = threading.Event()
    encode = Tokenizer.encode

    def stuck(self, text, **options):
        if "stick" in text:
            released.wait()
        return encode(self, text, **options)

    monkeypatch.setattr(Tokenizer, "encode", stuck)
    try:
        with start(shutdown_seconds=0.4) as client:
            port = int(str(client.base_url).rpartition(":")[2])
            fields = {"messages": [{"role": "user", "content": "stick"}]}
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.sendall(request("POST", CHAT, fields))
                while not client.service.engine.running:
                    time.sleep(0.01)
            service = client.service
        assert service.engine.stuck
    finally:
        released.set()
    service.engine.close()
    assert not service.engine.stuck
