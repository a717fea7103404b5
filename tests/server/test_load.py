"""Many clients at once, some of which leave: every answer is the one a lone client gets, and nothing is left behind."""

import gc
import json
import logging
import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import lily_tiny
from lily import Model, Sampling
from lily.chat import collect

CHAT = "/v1/chat/completions"
WORDS = ["river", "lamp", "seven", "cloud", "bread", "stone", "green", "letter", "winter", "horse", "small", "music"]


def conversation(number):
    """A conversation of its own for each number; some share their beginning."""
    draw = random.Random(number)
    system = [{"role": "system", "content": f"Answer as number {number % 3}."}] if number % 2 else []
    text = " ".join(draw.choices(WORDS, k=draw.choice([3, 10, 40, 120])))
    return [*system, {"role": "user", "content": text}]


def request(number):
    draw = random.Random(-number - 1)
    fields = {"messages": conversation(number), "max_tokens": draw.choice([1, 4, 9, 16]), "temperature": 0}
    return {**fields, "chat_template_kwargs": {"enable_thinking": number % 3 == 0}}


def expected(model, number):
    fields = request(number)
    chat = model.chat(
        messages=fields["messages"],
        sampling=Sampling.greedy(),
        max_tokens=fields["max_tokens"],
        thinking=fields["chat_template_kwargs"]["enable_thinking"],
    )
    with chat:
        answer = collect(chat.send())
    return answer.content, answer.reasoning, answer.finish_reason


def whole(client, number):
    body = client.post(CHAT, json=request(number)).json()
    message = body["choices"][0]["message"]
    return message["content"], message.get("reasoning_content", ""), body["choices"][0]["finish_reason"]


def streamed(client, number):
    content, reasoning, finish = "", "", None
    with client.stream("POST", CHAT, json={**request(number), "stream": True}) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                choice = json.loads(line[6:])["choices"][0]
                content += choice["delta"].get("content") or ""
                reasoning += choice["delta"].get("reasoning_content") or ""
                finish = choice["finish_reason"] or finish
    return content, reasoning, finish


def left(client, number):
    """A client that goes: before the answer, or within it."""
    lines = random.Random(number).randrange(4)
    with client.stream("POST", CHAT, json={**request(number), "stream": True, "max_tokens": 300}) as response:
        for _, line in zip(range(lines), response.iter_lines(), strict=False):
            assert line is not None


def live_sessions(model):
    gc.collect()
    return len(model.open_objects.sessions)


def wait_until_idle(service, seconds=60):
    end = time.monotonic() + seconds
    while service.engine.running or service.engine.waiting:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_64_clients_with_disconnects(client, model, caplog):
    before = live_sessions(model)

    def act(number):
        kind = (whole, streamed, left)[number % 3]
        return number, kind(client, number)

    with ThreadPoolExecutor(64) as pool:
        results = list(pool.map(act, range(64)))
    wait_until_idle(client.service)
    assert live_sessions(model) == before
    assert client.get("/health").json()["status"] == "ok"
    for number, result in results:
        if number % 3 != 2:
            assert result == expected(model, number)
    # Not a traceback for a client that left.
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_disconnect_while_the_prompt_is_computed_ends_it(start, model, monkeypatch):
    from lily.server.engine import Ticket

    reported = []
    report = Ticket.report

    def slowed(self, done, total):
        reported.append((done, total))
        time.sleep(0.05)
        report(self, done, total)

    monkeypatch.setattr(Ticket, "report", slowed)
    before = live_sessions(model)
    text = " ".join(random.Random(1).choices(WORDS, k=1600))
    with start() as client:
        fields = {"messages": [{"role": "user", "content": text}], "stream": True}
        with client.stream("POST", CHAT, json=fields) as response:
            next(response.iter_lines())
        wait_until_idle(client.service)
    assert reported[-1][0] < reported[-1][1]
    assert live_sessions(model) == before


def resident_bytes():
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the system does not tell")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the memory from /proc")
def test_2000_requests_leave_nothing_behind():
    """Memory after 2,000 requests is that after 500, the warm-up, to within one snapshot and the allocator's noise."""
    from conftest import running
    from lily.server import ServerOptions

    cache_bytes = 24 << 20
    with Model.load(lily_tiny.CHECKPOINT, threads=2, max_context=4096, prefix_cache_bytes=cache_bytes) as model:
        answers = {}

        def act(number):
            kind = (whole, streamed, left)[random.Random(number).choices(range(3), [5, 4, 1])[0]]
            result = kind(client, number % 400)
            return None if kind is left else (number % 400, result)

        with running(model, ServerOptions(names=("lily-tiny",), max_queue=64)) as client:
            sizes = []
            for part in range(4):
                with ThreadPoolExecutor(16) as pool:
                    for result in pool.map(act, range(500 * part, 500 * part + 500)):
                        if result is not None:
                            assert answers.setdefault(*result) == result[1]
                wait_until_idle(client.service)
                assert live_sessions(model) == 0
                assert model.cache.stats().bytes <= cache_bytes
                sizes.append(resident_bytes())
        for number in random.Random(0).sample(sorted(answers), 60):
            assert answers[number] == expected(model, number)
        with model.prefill(model.render_chat(conversation(3))) as session:
            snapshot = session.state_bytes
        assert sizes[-1] - sizes[0] <= snapshot + (16 << 20)
