"""The memory that requests take: all together within the budget, and nothing once their clients have gone."""

import contextlib
import json
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("lily._core", reason="needs the built package")
pytest.importorskip("starlette", reason="needs the extra for the server")

from served import CHAT, HELLO, everything, parsed, request, served

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the memory from /proc")

MIB = 1 << 20
BUDGET = 64 * MIB
NOISE = 48 * MIB  # the allocator's, of buffers and of threads
LONG = {"messages": HELLO, "max_tokens": 3000, "stream": True}


def messages(size):
    """A conversation of that many bytes that takes a multiple of them in memory."""
    one = {"role": "user", "content": "some words"}
    return json.dumps({"messages": [one] * (size // (len(json.dumps(one)) + 2)), "max_tokens": 2}).encode()


@pytest.fixture
def server():
    limits = {"max_pending_bytes": BUDGET, "max_request_bytes": 31 * MIB, "body_seconds": 5, "head_seconds": 2}
    with served("endless_answers", **limits) as one:
        one.ask("POST", CHAT, {"messages": HELLO, "max_tokens": 1})
        yield one


def settled(server, most, seconds=30):
    """The memory once it is below a bound, or at the end of a time."""
    end = time.monotonic() + seconds
    while (now := server.resident_bytes()) > most and time.monotonic() < end:
        time.sleep(0.1)
    return now


def test_requests_whose_clients_left_hold_nothing(server):
    """Behind a long answer; 40 x 5 MB took 1.6 GB."""
    data = request("POST", CHAT, messages(5 * 10**6))
    with server.connect(request("POST", CHAT, LONG)):
        server.wait_until(lambda health: health["running"])
        before = server.resident_bytes()
        for number in range(40):
            with server.connect(data):
                if number % 4 == 0:  # some are prepared and queued, most are not
                    time.sleep(0.5)
        server.wait_until(lambda health: health["waiting"] == 0)
        assert server.health()["running"] == 1
        assert settled(server, before + NOISE) <= before + NOISE
    assert server.resident_bytes("VmHWM") <= before + BUDGET + NOISE


def test_bodies_that_stall(server):
    """8 of 30 MB took 240 MB."""
    before = server.resident_bytes()
    data = request("POST", CHAT, b" " * 30 * 10**6)[:-1]
    stalled = []
    for _ in range(8):
        stalled.append(server.connect())
        with contextlib.suppress(ConnectionError):
            stalled[-1].sendall(data)
    answers = [parsed(everything(connection))[0] for connection in stalled]
    assert server.resident_bytes("VmHWM") <= before + BUDGET + NOISE
    assert set(answers) <= {503, 408, None}  # None: the rest of the body was more than the server would drop
    assert 503 in answers or None in answers
    assert settled(server, before + NOISE) <= before + NOISE
    assert server.ask("POST", CHAT, {"messages": HELLO, "max_tokens": 1})[0] == 200


def test_large_requests_at_the_same_time(server):
    """8 of 22 MB took 1.9 GB. The first ones of 4 MB each fit, and small ones always do."""
    before = server.resident_bytes()
    data = messages(4 * 10**6)
    statuses, small = [], []
    threads = [threading.Thread(target=lambda: statuses.append(server.ask("POST", CHAT, data)[0])) for _ in range(16)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        small.append(server.ask("POST", "/tokenize", {"prompt": "Hello"})[0])
    assert set(small) == {200}
    assert set(statuses) <= {400, 503}  # 400: it is longer than the context
    assert server.resident_bytes("VmHWM") <= before + BUDGET + NOISE
    assert settled(server, before + NOISE) <= before + NOISE


def test_a_request_that_no_budget_holds_is_refused_for_good(server):
    status, body = server.ask("POST", CHAT, messages(20 * 10**6))
    assert status == 413
    assert b'"code":"request_too_large"' in body
    status, body = server.ask("POST", "/v1/messages", b'{"a":[' + b"[]," * 2 * 10**6 + b"0]}")
    assert status == 413
    assert b'"type":"request_too_large"' in body


def test_answers_that_nobody_reads(server):
    before = server.resident_bytes()
    fields = {**LONG, "max_tokens": 400, "n": 4, "logprobs": True, "top_logprobs": 20}
    readers = [server.connect(request("POST", CHAT, fields), receive_buffer=4096) for _ in range(2)]
    server.wait_until(lambda health: health["running"])
    time.sleep(3)
    assert server.resident_bytes("VmHWM") <= before + NOISE
    for reader in readers:
        reader.close()
    server.wait_until(lambda health: not health["running"])


@pytest.mark.parametrize(
    "text", ["\U0001f469\u200d\U0001f469\u200d\U0001f467" * 200_000, "é," * 500_000, "中文。" * 300_000]
)
def test_texts_to_encode(text):
    """The encoder takes 140 bytes for each byte of a part: 7 MB of emoji at /tokenize took 1 GB."""
    fields = {"model": "any", "max_tokens": 1}
    asked = [
        ("/tokenize", {"prompt": text}),
        ("/tokenize", {"prompt": text[: len(text) // 6]}),
        ("/v1/messages/count_tokens", {**fields, "messages": [{"role": "user", "content": text}]}),
        (CHAT, {**fields, "messages": [{"role": "user", "content": text}]}),
        ("/v1/completions", {**fields, "prompt": text}),
        ("/v1/responses", {"input": text}),
    ]
    with served(context=1 << 17, max_pending_bytes=BUDGET) as server:
        before = server.resident_bytes()
        statuses = []

        def ask(path, body):
            statuses.append(server.ask("POST", path, json.dumps(body, ensure_ascii=False).encode())[0])

        threads = [threading.Thread(target=ask, args=one) for one in asked * 2]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert set(statuses) <= {200, 400, 413, 503}
        assert server.resident_bytes("VmHWM") <= before + BUDGET + NOISE
        assert server.ask("POST", CHAT, {"messages": HELLO, "max_tokens": 1})[0] == 200
