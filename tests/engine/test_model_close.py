"""Model.close(): cancels what runs, waits for it and closes everything, whoever calls it meanwhile."""

from __future__ import annotations

import gc
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import lily
from engine_helpers import random_ids
from lily.errors import BusyError, CancelledError, ClosedError, InvalidArgumentError

ROUNDS = int(os.environ.get("LILY_CLOSE_ROUNDS", "25"))
WORKERS = 4
LONG = random_ids(2000, 1)


@pytest.fixture
def own(checkpoint: Path) -> Iterator[lily.Model]:
    """A model that a test may close."""
    with lily.Model.load(checkpoint, threads=1, prefill_chunk=16) as loaded:
        yield loaded


def mapped(directory: Path) -> list[str]:
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if str(directory) in line]


def kinds_of_work(model: lily.Model, saved: Path) -> list[Callable[[random.Random], object]]:
    greedy = lily.Sampling.greedy()

    def prefill(luck: random.Random) -> None:
        model.session().prefill(LONG[: luck.randrange(1, 400)])

    def generate(luck: random.Random) -> None:
        list(model.prefill([1, 2]).generate(max_tokens=luck.randrange(1, 100), sampling=greedy, stop_tokens=()))

    def score(luck: random.Random) -> None:
        model.session().score(LONG[: luck.randrange(2, 400)])

    def branch(luck: random.Random) -> None:
        session = model.prefill(LONG[: luck.randrange(1, 50)])
        snapshot = session.snapshot()
        session.fork().decode(1)
        session.restore(snapshot)

    def save_and_load(luck: random.Random) -> None:
        session = model.load_session(saved)
        session.save(saved.with_name(f"{threading.get_ident()}"))

    def cached(luck: random.Random) -> None:
        session = model.cached_session(LONG[: luck.randrange(20, 300)], snapshot_at=[10])
        model.cache.insert(session)

    return [prefill, generate, score, branch, save_and_load, cached]


def work(kinds: list[Callable[[random.Random], object]], seed: int, errors: list[BaseException]) -> None:
    luck = random.Random(seed)
    try:
        while True:
            luck.choice(kinds)(luck)
    except BaseException as error:
        errors.append(error)


def test_closing_under_load(checkpoint: Path, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    before = mapped(checkpoint)  # of other tests' models
    for round_number in range(ROUNDS):
        model = lily.Model.load(checkpoint, threads=1, prefill_chunk=16)
        model.prefill([1, 2, 3]).save(saved)
        errors: list[BaseException] = []

        workers = [
            threading.Thread(target=work, args=(kinds_of_work(model, saved), 1000 * round_number + number, errors))
            for number in range(WORKERS)
        ]
        for worker in workers:
            worker.start()
        time.sleep(random.Random(round_number).random() * 0.02)
        with ThreadPoolExecutor(2) as closers:
            for closing in [closers.submit(model.close) for _ in range(1 + round_number % 2)]:
                closing.result(timeout=60)
                assert model.closed
                assert all(session.core.closed for session in list(model.open_objects.sessions))
        for worker in workers:
            worker.join(timeout=60)
            assert not worker.is_alive()
        assert [type(error) for error in errors if not isinstance(error, (ClosedError, CancelledError))] == []
        assert len(errors) == WORKERS
        errors.clear()
        del model, workers, worker, closing
        gc.collect()
        assert len(mapped(checkpoint)) == len(before)


def test_a_long_call_is_cancelled_and_waited_for(own: lily.Model) -> None:
    started = threading.Event()
    session = own.session()
    with ThreadPoolExecutor(1) as other:
        running = other.submit(session.prefill, LONG, progress=lambda done, total: started.set())
        assert started.wait(timeout=30)
        own.close()
        assert session.core.closed
        with pytest.raises(CancelledError):
            running.result(timeout=30)
    for use in (lambda: session.decode(1), lambda: session.tokens, own.session, session.snapshot, session.fork):
        with pytest.raises(ClosedError):
            use()


def test_closing_from_a_callback_changes_nothing(own: lily.Model) -> None:
    refused: list[BaseException] = []
    bystander, snapshot = own.prefill([5]), own.prefill([6]).snapshot()

    def close(done: int, total: int) -> None:
        for attempt in (own.close, lambda: own.close(timeout=0), lambda: own.__exit__(None, None, None)):
            with pytest.raises(BusyError, match="within one of its own calls"):
                attempt()
            refused.append(BusyError())

    session = own.session()
    logits = np.array(session.prefill(LONG[:40], progress=close))
    session.score(LONG[:40], progress=close)
    own.cached_session(LONG[:40], progress=lambda done, total: close(done, total) if done else None)
    assert len(refused) == 27
    assert not own.closed
    assert np.array_equal(own.prefill(LONG[:40]).logits, logits)
    bystander.decode(1)
    assert snapshot.position == 1
    own.close()
    assert own.closed and snapshot.closed


def test_closing_within_a_loop_over_tokens(own: lily.Model) -> None:
    """Nothing runs between two tokens: the model is closed, and the next token is refused."""
    tokens = own.prefill([1, 2]).generate(sampling=lily.Sampling.greedy(), stop_tokens=())
    with pytest.raises(ClosedError):
        for _ in tokens:
            own.close()
    assert own.closed


def test_closing_within_a_mask(own: lily.Model) -> None:
    generation = own.prefill([1, 2]).generation(mask=own.close, stop_tokens=())
    with pytest.raises(ClosedError):
        next(generation)
    assert own.closed


def test_a_call_that_does_not_end_in_time(own: lily.Model) -> None:
    entered, leave = threading.Event(), threading.Event()
    idle, stuck = own.prefill([1]), own.session()

    def wait(done: int, total: int) -> None:
        entered.set()
        leave.wait(timeout=60)

    with ThreadPoolExecutor(2) as others:
        running = others.submit(stuck.prefill, LONG, progress=wait)
        assert entered.wait(timeout=30)
        with pytest.raises(BusyError, match="1 of its calls"):
            own.close(timeout=0.01)
        assert idle.core.closed and not own.closed
        for use in (own.session, lambda: stuck.position, lambda: stuck.decode(1), idle.snapshot):
            with pytest.raises(ClosedError):
                use()
        second = others.submit(own.close)  # goes on, and is done when the call is
        leave.set()
        second.result(timeout=30)
        assert own.closed
        with pytest.raises(CancelledError):
            running.result(timeout=30)
    own.close()


def test_a_callback_in_another_thread_may_try_as_well(own: lily.Model) -> None:
    """Two closers, one of them within a call that the other one waits for."""
    entered = threading.Event()
    refused: list[BaseException] = []

    def close(done: int, total: int) -> None:
        entered.set()
        time.sleep(0.01)
        try:
            own.close()
        except BusyError as error:
            refused.append(error)

    with ThreadPoolExecutor(1) as other:
        running = other.submit(own.session().prefill, LONG, progress=close)
        assert entered.wait(timeout=30)
        own.close()
        with pytest.raises(CancelledError):
            running.result(timeout=30)
    assert refused and own.closed


def test_an_error_in_the_block_is_what_the_caller_sees(checkpoint: Path) -> None:
    entered, leave = threading.Event(), threading.Event()
    model = lily.Model.load(checkpoint, threads=1, prefill_chunk=16)

    def wait(done: int, total: int) -> None:
        entered.set()
        leave.wait(timeout=60)

    with ThreadPoolExecutor(1) as other:
        with pytest.raises(ZeroDivisionError), model:
            running = other.submit(model.session().prefill, LONG, progress=wait)
            assert entered.wait(timeout=30)
            model.close = lambda close=model.close: close(timeout=0.01)  # type: ignore[method-assign]
            raise ZeroDivisionError
        leave.set()
        with pytest.raises(CancelledError):
            running.result(timeout=30)
    del model.close
    model.close()
    assert model.closed


def test_nothing_enters_the_cache_of_a_closed_model(own: lily.Model) -> None:
    session = own.prefill(LONG[:20])
    snapshot = lily._core.Snapshot.take(session.core, False)  # as an insert in another thread holds it
    own.close()
    own.cache.store.add(snapshot)
    assert len(own.cache) == 0


@pytest.mark.parametrize("timeout", [-1, float("nan"), "1", None, True, b"1"])
def test_timeouts_are_checked_first(own: lily.Model, timeout: object) -> None:
    with pytest.raises(InvalidArgumentError, match="timeout"):
        own.close(timeout=timeout)  # type: ignore[arg-type]
    assert not own.closed
    own.close(timeout=float("inf"))
