"""The order of requests at the engine: clients take turns, and nothing is computed side by side or twice."""

import asyncio
import threading

import pytest

from lily import Sampling, Session
from lily.chat import ContentDelta, Done, ReasoningDelta, TurnOptions
from lily.server.byte_budget import ByteBudget, Charge
from lily.server.engine import Engine, Failure, Finished
from lily.server.steps import Steps
from lily.server.turns import ChatRequest, chat_work

CHAT = "/v1/chat/completions"


@pytest.fixture
def engine():
    engine = Engine(max_queue=64)
    yield engine
    engine.close()


async def finish(*tickets):
    for ticket in tickets:
        while not isinstance(item := await ticket.next(), Finished):
            assert not isinstance(item, Failure), item


def order_of(engine, clients):
    """The order in which requests of these clients run when all of them wait at the same time."""
    order, release = [], threading.Event()

    def work(name):
        def run(ticket):
            del ticket
            order.append(name)
            yield 0, name

        return run

    def first(ticket):
        del ticket
        release.wait()
        yield 0, "first"

    async def submit():
        tickets = [engine.submit(first, "first")]
        tickets += [engine.submit(work((client, at)), client) for at, client in enumerate(clients)]
        release.set()
        await finish(*tickets)

    asyncio.run(submit())
    return order


def test_clients_take_turns_and_keep_their_order(engine):
    clients = "AAAABBACB"
    assert order_of(engine, clients) == list(zip("ABCABABAA", (0, 4, 7, 1, 5, 2, 8, 3, 6), strict=True))
    # The next round begins anew.
    assert order_of(engine, "BAA") == [("B", 0), ("A", 1), ("A", 2)]


def test_keys_tell_clients_apart(start, monkeypatch):
    names = []
    submit = Engine.submit
    monkeypatch.setattr(Engine, "submit", lambda self, work, client: names.append(client) or submit(self, work, client))
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    with start(api_keys=("one", "two")) as client:
        for headers in ({"authorization": "Bearer one"}, {"x-api-key": "two"}, {"x-api-key": "one"}):
            assert client.post(CHAT, json=body, headers=headers).status_code == 200
    assert names == ["one", "two", "one"]


def test_two_queued_requests_compute_what_they_compute_alone(engine, model, monkeypatch):
    """Each runs to its end before the next begins, with as many steps as on its own: no time is lost to the other."""
    steps = []
    for name in ("prefill", "decode"):
        call = getattr(Session, name)

        def counted(self, given, *arguments, name=name, call=call, **options):
            steps.append((name, len(given) if name == "prefill" else 1))
            return call(self, given, *arguments, **options)

        monkeypatch.setattr(Session, name, counted)
    requests = [
        ChatRequest(
            [{"role": "user", "content": f"Number {at}: " + "some words " * 30}],
            None,
            thinking=True,
            options=TurnOptions(max_tokens=20, sampling=Sampling.greedy()),
        )
        for at in (1, 2)
    ]
    seen = []
    preparing = Steps(lambda: None, Charge(ByteBudget(1 << 20)))

    def watched(number, request):
        def run(ticket):
            for item in chat_work(model, request, preparing)(ticket):
                seen.append((number, type(item[1])))
                yield item

        return run

    async def submit(*numbers):
        model.cache.clear()
        await finish(*[engine.submit(watched(number, requests[number]), f"client {number}") for number in numbers])

    alone = []
    for number in (0, 1):
        asyncio.run(submit(number))
        alone.append((list(seen), list(steps)))
        seen.clear()
        steps.clear()
    asyncio.run(submit(0, 1))
    assert seen == alone[0][0] + alone[1][0]
    assert {kind for _, kind in seen} <= {ReasoningDelta, ContentDelta, Done}
    assert [number for number, kind in seen if kind is Done] == [0, 1]
    # The second one finds the beginning that both share.
    computed = [sum(count for name, count in part if name == "prefill") for part in (steps, *(one[1] for one in alone))]
    assert 0 < computed[0] <= computed[1] + computed[2]
    assert sum(name == "decode" for name, _ in steps) == sum(name == "decode" for one in alone for name, _ in one[1])
