"""Clients that leave: what they asked for ends at once, others take their place, and the counts say so."""

import asyncio
import gc
import json
import logging
import socket
import threading
import time
import weakref
from types import SimpleNamespace

import pytest

pytest.importorskip("lily._core", reason="needs the built package")
pytest.importorskip("starlette", reason="needs the extra for the server")

from starlette.requests import Request

from lily.chat import ContentDelta
from lily.errors import CancelledError, CheckpointError, ClosedError
from lily.server import ServerOptions, chat_completions, engine, errors
from lily.server.byte_budget import ByteBudget, Charge
from lily.server.call import Call
from lily.server.delivery import EventStream
from lily.server.engine import Engine, Failure, Finished
from served import CHAT, HELLO, MESSAGES, RESPONSES, everything, parsed, request

PATHS = {
    CHAT: {"messages": HELLO, "max_tokens": 2},
    MESSAGES: {"messages": HELLO, "max_tokens": 2},
    RESPONSES: {"input": "Hello", "max_output_tokens": 2},
    "/v1/completions": {"prompt": "Hello", "max_tokens": 2},
}
NAMES = {CHAT: "chat_completions", MESSAGES: "messages", RESPONSES: "responses", "/v1/completions": "completions"}


class Gate:
    """Work that waits until it is let go."""

    def __init__(self, monkeypatch):
        self.opened = threading.Event()
        self.tickets = []
        run = engine.Ticket.run

        def held(ticket):
            self.tickets.append(ticket)
            self.opened.wait()
            run(ticket)

        monkeypatch.setattr(engine.Ticket, "run", held)


@pytest.fixture
def held(monkeypatch):
    gate = Gate(monkeypatch)
    yield gate
    gate.opened.set()


def connect(client, data=b""):
    connection = socket.create_connection(("127.0.0.1", client.base_url.port), timeout=60)
    connection.sendall(data)
    return connection


def wait_until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def counted(client, status, endpoint):
    line = f'lily_requests_total{{endpoint="{endpoint}",status="{status}"}} '
    text = client.get("/metrics").text
    return float(text.partition(line)[2].partition("\n")[0] or 0)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_those_that_wait_make_room(start, held, path, stream):
    """The queue is full, all leave, and the next one is answered."""
    data = request("POST", path, {**PATHS[path], "stream": stream})
    with start(max_queue=3) as client:
        queue = client.service.engine
        first = connect(client, data)
        wait_until(lambda: queue.running)
        waiting = [connect(client, data) for _ in range(3)]
        wait_until(lambda: queue.waiting == 3)
        with connect(client, data) as refused:
            assert refused.recv(100).startswith(b"HTTP/1.1 429")
        works = [weakref.ref(ticket._work) for ticket in queue._waiting]
        gc.disable()
        try:
            for connection in waiting:
                connection.close()
            wait_until(lambda: queue.waiting == 0)
            wait_until(lambda: counted(client, 499, NAMES[path]) == 3)
            assert [work() for work in works] == [None] * 3  # freed at once, not by the garbage collector
            small = len(request("POST", path, PATHS[path])) * 30
            assert client.service.budget.used < small
        finally:
            gc.enable()
        with connect(client, request("POST", path, PATHS[path], ["Connection: close"])) as last:
            wait_until(lambda: queue.waiting == 1)
            held.opened.set()
            assert parsed(everything(last))[0] == 200
        first.close()
        assert counted(client, 503, NAMES[path]) == 0


@pytest.mark.parametrize("stream", [False, True])
def test_one_whose_work_is_in_a_long_call_is_let_go(start, held, stream):
    """The engine is not done with it, but nothing else of the request is left."""
    with start() as client:
        with connect(client, request("POST", CHAT, {**PATHS[CHAT], "stream": stream})):
            wait_until(lambda: held.tickets)
        wait_until(lambda: counted(client, 499, "chat_completions") == 1)
        assert client.service.engine.running
        assert client.service.budget.used == 0
        assert held.tickets[0].cancelled
        held.opened.set()
        wait_until(lambda: not client.service.engine.running)


def test_the_ticket_of_a_stream_that_is_left_is_cancelled(start, monkeypatch):
    steps = []

    def endless(service, wanted, _, *, call_deltas):
        def work(ticket):
            while True:
                steps.append(ticket)
                time.sleep(0.005)
                yield 0, ContentDelta("on ")

        return work

    monkeypatch.setattr(chat_completions, "chat_work", endless)
    with start() as client:
        connection = connect(client, request("POST", CHAT, {**PATHS[CHAT], "stream": True}))
        while b"on " not in connection.recv(1 << 16):
            pass
        connection.close()
        wait_until(lambda: not client.service.engine.running)
        assert steps[0].cancelled
        assert counted(client, 499, "chat_completions") == 1


def test_the_ticket_of_a_stream_that_cannot_be_sent_is_cancelled():
    """The connection fails before anybody has told that the client has gone."""
    one = Engine(max_queue=4)

    def endless(ticket):
        while True:
            time.sleep(0.005)
            yield 0, ContentDelta("on ")

    class Form:
        def begin(self, prefill):
            return [b"begin"]

        def event(self, choice, event):
            return [event.text.encode()]

    sent = []

    async def send(message):
        sent.append(message)
        if len(sent) == 4:
            raise OSError("the connection is broken")

    async def ask():
        service = SimpleNamespace(options=ServerOptions(), engine=one)
        call = Call(Request({"type": "http"}), "client", Charge(ByteBudget(1)))
        ticket = one.submit(endless, "client")
        await EventStream(service, call, ticket, Form())({}, None, send)
        assert ticket.cancelled
        while one.running:
            await asyncio.sleep(0.01)

    try:
        asyncio.run(asyncio.wait_for(ask(), 60))
        assert [message.get("body") for message in sent[1:]] == [b"begin", b"on ", b"on "]
    finally:
        one.close()


def test_a_client_that_does_not_take_its_items_is_given_up(monkeypatch):
    monkeypatch.setattr(engine, "_MOST_ITEMS", 100)
    one = Engine(max_queue=4)
    made = []

    def work(ticket):
        while True:
            made.append(1)
            yield 0, "item"

    async def ask():
        ticket = one.submit(work, "client")
        while one.running or not made:
            await asyncio.sleep(0.01)
        count, last = 0, None
        while not isinstance(item := await ticket.next(), Failure):
            count, last = count + 1, item
        assert last == (0, "item")
        assert isinstance(item.error, CancelledError)
        return count

    try:
        assert asyncio.run(ask()) >= 100
        assert len(made) < 10**7
    finally:
        one.close()


def test_closing_does_not_wait_for_ever():
    one = Engine(max_queue=4)
    release = threading.Event()

    def stuck(ticket):
        release.wait()
        yield 0, "late"

    async def ask():
        tickets = [one.submit(stuck, "client") for _ in range(2)]
        while not one.running:
            await asyncio.sleep(0.01)
        await asyncio.get_running_loop().run_in_executor(None, one.close, 0.1)
        for ticket in tickets:
            assert isinstance(await ticket.next(), Failure)

    asyncio.run(ask())
    assert one.stuck
    release.set()
    one.close()
    assert not one.stuck


def test_cancelling_twice_and_after_the_end_does_nothing():
    one = Engine(max_queue=4)

    async def ask():
        ticket = one.submit(lambda ticket: (item for item in [(0, "item")]), "client")
        items = [await ticket.next(), await ticket.next()]
        ticket.cancel()
        ticket.cancel()
        return items

    try:
        assert asyncio.run(ask()) == [(0, "item"), Finished()]
        assert (one.waiting, one.running) == (0, 0)
    finally:
        one.close()


# -- errors


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("raised", "status"), [(ClosedError, 503), (RecursionError, 400), (OverflowError, 400)])
def test_failures_of_the_work(client, monkeypatch, caplog, raised, status, stream):
    def failing(service, wanted, _, *, call_deltas):
        def work(ticket):
            raise raised("planted\r\nINFO: a line of one's own \x1b[31m " + "long " * 1000)
            yield

        return work

    monkeypatch.setattr(chat_completions, "chat_work", failing)
    with caplog.at_level(logging.INFO, logger="lily.server"):
        response = client.post(CHAT, json={**PATHS[CHAT], "stream": stream})
    assert response.status_code == status
    assert (response.headers.get("retry-after") is not None) == (status == 503)
    records = [record for record in caplog.records if record.name == "lily.server"]
    assert len(records) <= 1
    for record in records:
        assert record.exc_info is None
        assert record.getMessage().isprintable()
        assert len(record.getMessage()) < 600
        assert "test_clients_that_leave.py" in record.getMessage()  # where it was raised


@pytest.mark.parametrize("stream", [False, True])
def test_weights_that_changed_under_the_server(start, monkeypatch, caplog, stream):
    """Every request says what happened, the log once, and /health too."""

    def failing(*_, call_deltas):
        def work(ticket):
            raise CheckpointError("/models/a/model.safetensors: it was changed after the model was loaded")
            yield

        return work

    monkeypatch.setattr(chat_completions, "chat_work", failing)
    with start() as client, caplog.at_level(logging.INFO, logger="lily.server"):
        assert client.get("/health").status_code == 200
        for _ in range(2):
            response = client.post(CHAT, json={**PATHS[CHAT], "stream": stream})
            assert response.status_code == 503
            error = response.json()["error"]
            assert error["code"] == "unavailable"
            assert "restart the server: model.safetensors: it was changed" in error["message"]
            assert "/models" not in error["message"]
        assert client.get("/health").status_code == 503
    assert len([record for record in caplog.records if record.name == "lily.server"]) == 1


def test_an_unknown_failure_is_one_line(caplog):
    error = errors.as_api_error(KeyError("\n\x00é\ud800" * 1000))
    assert error.status == 500
    assert len(caplog.records) == 1
    assert caplog.records[0].getMessage().isprintable()
    assert len(caplog.records[0].getMessage()) < 400


def test_long_texts_are_cut_in_what_clients_are_told():
    error = errors.ApiError(400, "x" * 10**6, param="y" * 10**6)
    assert len(error.message) == 1000
    assert len(error.param) == 200


# -- choices


def test_choices_of_several_prompts_have_their_own_indices(client):
    fields = {"prompt": ["One", "Two", "Three"], "n": 2, "max_tokens": 3, "temperature": 0, "echo": True}
    choices = client.post("/v1/completions", json=fields).json()["choices"]
    assert [choice["index"] for choice in choices] == list(range(6))
    for index, choice in enumerate(choices):
        assert choice["text"].startswith(("One", "Two", "Three")[index // 2])
    assert choices[0]["text"] == choices[1]["text"]
    with client.stream("POST", "/v1/completions", json={**fields, "stream": True}) as response:
        streamed = dict.fromkeys(range(6), "")
        for line in response.iter_lines():
            if line.startswith("data: {"):
                choice = json.loads(line[6:])["choices"][0]
                streamed[choice["index"]] += choice["text"]
    assert list(streamed.values()) == [choice["text"] for choice in choices]


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
@pytest.mark.parametrize("seed", [-2, -(1 << 63), (1 << 63) - 1])
def test_seeds_at_the_ends_of_their_range(client, path, seed):
    fields = {**PATHS[path], "n": 3, "seed": seed, "temperature": 9, "top_k": 0, "top_p": 1, "max_tokens": 8}
    answers = [client.post(path, json=fields) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 200]
    first, second = ([{**choice, "id": ""} for choice in answer.json()["choices"]] for answer in answers)
    assert first == second
    assert len({str({**choice, "index": 0}) for choice in first}) > 1


def test_a_request_that_fails_leaves_nothing_to_the_garbage_collector(client, monkeypatch):
    """An error's traceback holds the frames in which the request lies."""
    seen = []
    take = chat_completions.chat_request

    def watched(service, fields, steps):
        seen.append(weakref.ref(fields))
        return take(service, fields, steps)

    monkeypatch.setattr(chat_completions, "chat_request", watched)
    bodies = [{"messages": []}, {**PATHS[CHAT], "top_logprobs": 5}, {**PATHS[CHAT], "n": 17}]
    gc.collect()
    gc.disable()
    try:
        for body in bodies:
            assert client.post(CHAT, json=body).status_code == 400
        wait_until(lambda: [one() for one in seen] == [None] * 3)
    finally:
        gc.enable()
