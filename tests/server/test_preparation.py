"""Preparing requests: other requests are answered meanwhile, clients take turns, and what nobody wants is dropped."""

import asyncio
import json
import sys
import threading
import time
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("lily._core", reason="needs the built package")
pytest.importorskip("starlette", reason="needs the extra for the server")

from starlette.requests import Request

from lily.errors import CancelledError
from lily.server import json_steps, json_text, preparation
from lily.server.byte_budget import ByteBudget, Charge, parsed_bytes
from lily.server.call import Call
from lily.server.errors import ApiError
from lily.server.json_text import load_json
from lily.server.preparation import Preparation
from lily.text import Tokenizer

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=120)
    | st.sampled_from(['"', "\\", '",', "},{", "],[", "\ud83d", "\ude00", "\ud83d\ude00", "é" * 90, "\\u12"]),
    lambda inner: st.lists(inner, max_size=12) | st.dictionaries(st.text(max_size=8), inner, max_size=12),
    max_leaves=60,
)


@pytest.fixture
def in_steps(monkeypatch):
    monkeypatch.setattr(json_text, "_SHORT", 0)
    monkeypatch.setattr(json_steps, "_STEP", 48)


def strictly(data):
    try:
        return json.loads(data, parse_constant=json_text._refuse, parse_float=json_text._finite)
    except ValueError:
        return ValueError


def stepwise(data):
    try:
        return load_json(data)
    except ValueError:
        return ValueError


def test_parsing_in_steps_gives_what_the_library_gives(in_steps):
    @settings(max_examples=150, deadline=None)
    @given(values, st.booleans(), st.sampled_from([None, 1]), st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]))
    def same(value, escaped, indent, encoding):
        data = json.dumps(value, ensure_ascii=escaped, indent=indent).encode(encoding, "surrogatepass")
        assert repr(stepwise(data)) == repr(strictly(data))

    same()


def test_parsing_in_steps_refuses_what_the_library_refuses(in_steps):
    @settings(max_examples=300, deadline=None)
    @given(values, st.data())
    def same(value, draw):
        data = bytearray(json.dumps(value, ensure_ascii=draw.draw(st.booleans())).encode("utf-8", "surrogatepass"))
        for _ in range(draw.draw(st.integers(1, 3))):
            at = draw.draw(st.integers(0, len(data)))
            data[at : at + draw.draw(st.integers(0, 1))] = draw.draw(st.sampled_from([b"", *b'{}[]",:\\ 1eN'.split()]))
            data[at:at] = draw.draw(st.sampled_from([b"", b'"', b"{", b"}", b"[", b"]", b",", b":", b"\\", b" ", b"1"]))
        assert repr(stepwise(bytes(data))) == repr(strictly(bytes(data)))

    same()


def test_deep_texts_are_refused_however_long(in_steps):
    for depth in (10**3, 10**5):
        with pytest.raises((ValueError, RecursionError)):
            load_json(b"[" * depth + b"]" * depth)
    with pytest.raises(RecursionError):
        load_json(b'{"a":' * 201 + b"1" + b"}" * 201)
    assert load_json(b"[" * 60 + b"]" * 60) is not None


def test_parsing_can_be_ended(in_steps):
    seen = []

    def check():
        seen.append(1)
        if len(seen) == 5:
            raise CancelledError("enough")

    with pytest.raises(CancelledError):
        load_json(json.dumps(list(range(10_000))).encode(), check)
    assert len(seen) == 5


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="counts the bytes of CPython's objects")
@pytest.mark.parametrize(
    "data",
    [
        b"[" + b"[]," * 50_000 + b"0]",
        b"[" + b"{}," * 50_000 + b"0]",
        b"[" + b'{"a":0},' * 50_000 + b"0]",
        b"[" + b'{"a":[0]},' * 50_000 + b"0]",
        b"[" + b"1234567," * 50_000 + b"0]",
        b"[" + b'"ab",' * 50_000 + b"0]",
        b"[" + b"0.5," * 50_000 + b"0]",
        json.dumps({f"{at}": at for at in range(50_000)}).encode(),
        json.dumps(["x" * 1000] * 500).encode(),
        json.dumps(["x" * 1000 + "\U0001f600"] * 500).encode(),
        json.dumps(["x" * 1000 + "\U0001f600"] * 500, ensure_ascii=False).encode(),
        json.dumps(["é" * 500 + "€"] * 500, ensure_ascii=False).encode(),
        json.dumps([{"role": "user", "content": "some words here"}] * 10_000).encode(),
    ],
)
def test_the_memory_of_a_value_is_not_underestimated(data):
    tracemalloc.start()
    try:
        value = load_json(data)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert value
    assert taken <= 1.25 * parsed_bytes(data) + 10_000
    assert parsed_bytes(data) <= 4 * taken + 10_000


def test_the_budget_of_bytes():
    budget = ByteBudget(400 << 20)
    large, other, small = (Charge(budget) for _ in range(3))
    large.resize(200 << 20)
    with pytest.raises(ApiError) as refused:
        other.resize(101 << 20)
    assert (refused.value.status, refused.value.headers) == (503, {"retry-after": "2"})
    assert other.size == 0
    other.resize(100 << 20)
    small.resize(1 << 20)  # the last quarter is for small ones
    with pytest.raises(ApiError) as refused:
        other.resize(301 << 20)
    assert refused.value.status == 413
    large.resize(1)
    other.resize(200 << 20)
    for charge in (large, other, small, small):
        charge.release()
    small.resize(1 << 20)  # by a thread that did not know yet
    assert budget.used == 0


# -- the threads


def call(client="client"):
    return Call(Request({"type": "http"}), client, Charge(ByteBudget(1)))


def run(work):
    prepare = Preparation(64)
    try:
        return asyncio.run(asyncio.wait_for(work(prepare), 60))
    finally:
        prepare.close(0)


def test_clients_take_turns():
    order, holds = [], (threading.Event(), threading.Event())

    async def work(prepare):
        jobs = [asyncio.create_task(prepare.run(call("first"), lambda check, hold=hold: hold.wait())) for hold in holds]
        while len(prepare._running) < 2:
            await asyncio.sleep(0.01)
        for client, at in (("A", 0), ("A", 1), ("A", 2), ("B", 3), ("C", 4)):
            job = prepare.run(call(client), lambda check, name=client + str(at): order.append(name))
            jobs.append(asyncio.create_task(job))
            await asyncio.sleep(0)
        assert prepare.waiting == 5
        holds[0].set()  # one thread goes on, so that there is one order
        await asyncio.gather(*jobs[2:])
        holds[1].set()
        await asyncio.gather(*jobs)

    run(work)
    assert order == ["A0", "B3", "C4", "A1", "A2"]


def test_what_a_client_leaves_is_dropped():
    release, ran = threading.Event(), []

    async def work(prepare):
        blocked = [asyncio.create_task(prepare.run(call(), lambda check: release.wait())) for _ in range(2)]
        while len(prepare._running) < 2:
            await asyncio.sleep(0.01)
        left, stays = call("left"), call("stays")
        waits = asyncio.create_task(prepare.run(left, lambda check: ran.append("left")))
        kept = asyncio.create_task(prepare.run(stays, lambda check: ran.append("stays")))
        while prepare.waiting < 2:
            await asyncio.sleep(0.01)
        left.left = True
        for callback in list(left._callbacks):
            callback()
        with pytest.raises(CancelledError):
            await waits
        assert prepare.waiting == 1
        release.set()
        await asyncio.gather(kept, *blocked)

    run(work)
    assert ran == ["stays"]


def test_a_job_that_is_being_done_is_told():
    told = threading.Event()

    async def work(prepare):
        leaving = call()

        def job(check):
            try:
                while True:
                    check()
                    time.sleep(0.001)
            except CancelledError:
                told.set()
                raise

        task = asyncio.create_task(prepare.run(leaving, job))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(work)
    assert told.wait(30)


def test_jobs_that_do_not_end_keep_nobody_waiting(monkeypatch):
    monkeypatch.setattr(preparation, "_LONG", 0.05)
    release = threading.Event()

    async def work(prepare):
        stuck = [asyncio.create_task(prepare.run(call(), lambda check: release.wait())) for _ in range(6)]
        for number in range(10):
            await asyncio.sleep(0.1)
            assert await prepare.run(call("other"), lambda check, number=number: number) == number
        release.set()
        await asyncio.gather(*stuck)
        while len(prepare._threads) > preparation._THREADS:  # those that were started besides end
            await prepare.run(call(), lambda check: None)

    run(work)


def test_a_job_has_its_time(monkeypatch):
    monkeypatch.setattr(preparation, "_MOST_SECONDS", 0.1)
    release = threading.Event()

    async def work(prepare):
        with pytest.raises(ApiError) as refused:
            await prepare.run(call(), lambda check: release.wait())
        assert refused.value.status == 503

    try:
        run(work)
    finally:
        release.set()


def test_there_is_a_limit_of_waiting_jobs():
    release = threading.Event()

    async def work(prepare):
        jobs = [asyncio.create_task(prepare.run(call(), lambda check: release.wait())) for _ in range(80)]
        await asyncio.sleep(0.1)
        refused = [job for job in jobs if job.done()]
        assert 10 < len(refused) <= 80 - 64
        assert {job.exception().status for job in refused} == {429}
        release.set()
        await asyncio.gather(*jobs, return_exceptions=True)

    run(work)


# -- through the server


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"prompt": "wait"}),
        ("/v1/completions", {"prompt": "wait", "max_tokens": 1}),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "wait"}]}),
    ],
)
def test_others_are_answered_while_a_text_is_encoded(client, monkeypatch, path, body):
    encode = Tokenizer.encode
    answered = []

    def waiting(self, text, **options):
        if "wait" in text and not answered:
            assert threading.current_thread().name == "lily-prepare"
            answered.append(client.get("/health").status_code)
            answered.append(client.post("/tokenize", json={"prompt": "other"}).status_code)
        return encode(self, text, **options)

    monkeypatch.setattr(Tokenizer, "encode", waiting)
    assert client.post(path, json=body).status_code == 200
    assert answered == [200, 200]


def test_nothing_of_a_request_is_read_on_the_event_loop(client, monkeypatch):
    from lily.server.fields import Fields

    names = set()
    take = Fields.any
    monkeypatch.setattr(
        Fields, "any", lambda self, *given: names.add(threading.current_thread().name) or take(self, *given)
    )
    hello = [{"role": "user", "content": "Hello"}]
    for path, body in (
        (CHAT, {"messages": hello, "max_tokens": 1}),
        (MESSAGES, {"messages": hello, "max_tokens": 1}),
        (f"{MESSAGES}/count_tokens", {"messages": hello}),
        ("/v1/responses", {"input": "Hello", "max_output_tokens": 1}),
        ("/v1/completions", {"prompt": "Hello", "max_tokens": 1, "echo": True}),
        ("/tokenize", {"prompt": "Hello"}),
        ("/detokenize", {"tokens": [1]}),
    ):
        assert client.post(path, json=body).status_code == 200
    assert names == {"lily-prepare"}


def test_what_cannot_fit_is_refused_before_it_is_encoded(client, monkeypatch):
    encoded = []
    encode = Tokenizer.encode
    monkeypatch.setattr(
        Tokenizer, "encode", lambda self, text, **options: encoded.append(len(text)) or encode(self, text, **options)
    )
    text = "a word " * 700_000
    tool = {"type": "function", "function": {"name": "f", "description": text, "parameters": {"type": "object"}}}
    user = [{"role": "user", "content": text}]
    hello = [{"role": "user", "content": "Hello"}]
    for path, body in (
        (CHAT, {"messages": user}),
        (CHAT, {"messages": hello, "tools": [tool]}),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": text}]}]}),
        (MESSAGES, {"messages": user, "max_tokens": 1}),
        (f"{MESSAGES}/count_tokens", {"messages": user}),
        ("/v1/responses", {"input": text}),
        ("/v1/completions", {"prompt": text}),
    ):
        response = client.post(path, json=body)
        assert response.status_code == 400, path
        assert "tokens" in response.json()["error"]["message"]
    assert client.post("/tokenize", json={"prompt": text}).status_code == 413
    assert client.post("/detokenize", json={"tokens": [1] * ((1 << 20) + 1)}).status_code == 413
    assert encoded == []
    # Of a shorter one the beginning tells.
    assert client.post("/v1/completions", json={"prompt": "a word " * 100_000}).status_code == 400
    assert sum(encoded) < 7 * 100_000


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("logit_bias", {str(at): 1 for at in range(5000)}),
        ("stop", ["a" * 1025]),
        ("stop", ["a"] * 17),
        ("n", 17),
        ("top_logprobs", 21),
        ("tools", [{"type": "function", "function": {"name": f"f{at}"}} for at in range(1025)]),
    ],
)
def test_counts_are_bounded(client, name, value):
    fields = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, "logprobs": True, name: value}
    response = client.post(CHAT, json=fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == name
    assert len(response.text) < 1000


def test_memory_is_returned_after_large_requests_only(client, monkeypatch):
    returned = []
    monkeypatch.setattr(client.service.freed_memory, "_trim", returned.append)
    time.sleep(0.5)
    returned.clear()  # what an earlier test's large request left
    assert client.post("/tokenize", json={"prompt": "small"}).status_code == 200
    time.sleep(0.5)
    assert returned == []
    assert client.post("/tokenize", json={"prompt": "large " * 170_000}).status_code == 200
    end = time.monotonic() + 30
    while not returned:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert returned == [0]
