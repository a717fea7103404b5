"""Ctrl-C, cancel() and exceptions of callbacks stop a call within a chunk and leave a usable session."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import lily
from engine_helpers import THREADS, fresh_logits, in_chunks, random_ids
from lily.errors import CancelledError, InvalidArgumentError

CHUNK = 16
LONG = 4000


class StopError(Exception):
    pass


def stop(done: int, total: int) -> None:
    raise StopError


@pytest.fixture
def alarm() -> Iterator[Callable[[float], None]]:
    """Ctrl-C after some seconds."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.signal(signal.SIGALRM, signal.SIG_IGN)  # one that comes now would end the whole run
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def expect_usable(session: lily.Session, ids: list[int], start: int = 0) -> None:
    """The session holds a beginning of ids, in whole chunks; going on gives what one run gives."""
    position = session.position
    assert session.tokens == ids[:position]
    assert session.logits is None
    with pytest.raises(InvalidArgumentError, match="no logits"):
        next(session.generate(max_tokens=1, stop_tokens=()))
    logits = session.prefill(ids[position:])
    assert np.array_equal(logits, fresh_logits(session.model, ids))
    assert session.tokens == ids


@pytest.mark.parametrize("chunk", [1, 2, 5])
def test_exception_of_the_callback(session: lily.Session, chunk: int) -> None:
    ids = random_ids(100, 1)
    session.prefill(ids[:3])
    with pytest.raises(StopError):
        session.prefill(ids[3:], progress=in_chunks(stop, chunk))
    assert session.position == 3 + CHUNK * chunk
    expect_usable(session, ids)


def test_exception_after_the_last_chunk(session: lily.Session) -> None:
    ids = random_ids(40, 1)
    with pytest.raises(StopError):
        session.prefill(ids, progress=in_chunks(stop, 3))
    assert session.tokens == ids
    assert np.array_equal(session.logits, fresh_logits(session.model, ids))


def test_progress_counts_the_tokens_of_the_call(session: lily.Session) -> None:
    session.prefill([1, 2, 3])
    for _ in session.generate(max_tokens=1, stop_tokens=()):
        pass
    calls: list[tuple[int, int]] = []
    session.prefill(random_ids(40), progress=lambda *call: calls.append(call))
    assert calls == [(16, 40), (32, 40), (40, 40)]
    calls.clear()
    session.score(random_ids(40), progress=lambda *call: calls.append(call))
    assert calls == [(16, 39), (32, 39), (39, 39)]


def test_keyboard_interrupt_in_prefill(session: lily.Session, alarm: Callable[[float], None]) -> None:
    ids = random_ids(LONG, 2)
    seen: list[int] = []

    def progress(done: int, total: int) -> None:
        seen.append(done)
        if len(seen) == 3:
            alarm(1e-4)

    with pytest.raises(KeyboardInterrupt):
        session.prefill(ids, progress=progress)
    assert session.position % CHUNK == 0
    assert seen[-1] <= session.position < LONG
    expect_usable(session, ids)


def test_keyboard_interrupt_within_one_call_without_a_callback(
    session: lily.Session, alarm: Callable[[float], None]
) -> None:
    """The call itself looks for signals between its chunks: there is no Python code that would."""
    ids = random_ids(LONG, 2)
    taken = float("inf")
    for _ in range(2):
        begin = time.monotonic()
        session.prefill(ids)
        taken = min(taken, time.monotonic() - begin)
        session.reset()
    with pytest.raises(KeyboardInterrupt):
        alarm(taken / 4)
        session.prefill(ids)
    assert session.position % CHUNK == 0 and session.position < LONG
    expect_usable(session, ids)


def test_keyboard_interrupts_at_any_time(checkpoint: Path, alarm: Callable[[float], None]) -> None:
    """Signals that arrive anywhere in calls and between them never leave the session locked or torn."""
    random = np.random.default_rng(7)
    ids: list[int] = []
    with lily.Model.load(checkpoint, threads=1, prefill_chunk=4) as model:
        session = model.session()
        for number in range(40):
            more = random_ids(30, number)
            before = session.position
            try:
                alarm(float(random.uniform(1e-5, 3e-3)))  # it may come before the next line
                session.prefill(more)
                for token in session.generate(max_tokens=5, stop_tokens=()):
                    assert session.tokens[-1] == token
                time.sleep(1)
            except KeyboardInterrupt:
                pass
            tokens = session.tokens
            assert tokens[:before] == ids
            computed = tokens[before : before + len(more)]
            assert computed == more[: len(computed)]
            ids = tokens
        assert np.array_equal(session.decode(1), fresh_logits(model, [*ids, 1]))


def test_keyboard_interrupt_in_score(session: lily.Session, alarm: Callable[[float], None]) -> None:
    session.prefill([1, 2, 3])
    with pytest.raises(KeyboardInterrupt):
        alarm(0.02)
        while True:
            session.score(random_ids(LONG))
    assert session.tokens == [1, 2, 3]
    assert np.array_equal(session.logits, fresh_logits(session.model, [1, 2, 3]))


def test_cancel_in_prefill(session: lily.Session) -> None:
    ids = random_ids(LONG, 3)
    canceller = threading.Thread(target=session.cancel)
    with pytest.raises(CancelledError, match="holds what was computed"):
        session.prefill(ids, progress=in_chunks(lambda done, total: (canceller.start(), canceller.join()), 4))
    assert session.position == 4 * CHUNK
    expect_usable(session, ids)


def test_cancel_from_another_thread_without_a_callback(session: lily.Session) -> None:
    timer = threading.Timer(0.02, session.cancel)
    timer.start()
    with pytest.raises(CancelledError):
        while True:
            session.score(random_ids(LONG))
    timer.join()
    assert session.position == 0


def test_cancel_in_score(session: lily.Session) -> None:
    session.prefill([4, 5])
    expected = session.score(random_ids(100))
    with pytest.raises(CancelledError):
        session.score(random_ids(100), progress=in_chunks(lambda done, total: session.cancel(), 2))
    assert session.tokens == [4, 5]
    assert np.array_equal(session.score(random_ids(100)), expected)


def test_cancel_in_generate(session: lily.Session) -> None:
    session.prefill([1, 2, 3])
    made: list[int] = []
    with pytest.raises(CancelledError):
        for token in session.generate(max_tokens=100, sampling=lily.Sampling.greedy(), stop_tokens=()):
            made.append(token)
            if len(made) == 7:
                session.cancel()
    assert len(made) == 7 and session.tokens == [1, 2, 3, *made]
    made += session.generate(max_tokens=5, sampling=lily.Sampling.greedy(), stop_tokens=())
    with session.model.session() as other:
        other.prefill([1, 2, 3])
        assert made == list(other.generate(max_tokens=12, sampling=lily.Sampling.greedy(), stop_tokens=()))


def test_cancel_concerns_running_calls_only(session: lily.Session) -> None:
    session.cancel()
    session.prefill(random_ids(40))
    session.cancel()
    assert len(list(session.generate(max_tokens=3, stop_tokens=()))) == 3
    session.cancel()
    session.score(random_ids(40))


def test_a_refused_call_does_not_end_a_cancellation(session: lily.Session) -> None:
    def cancel(done: int, total: int) -> None:
        session.cancel()
        with pytest.raises(lily.errors.BusyError):
            session.prefill([1])
        with pytest.raises(lily.errors.BusyError):
            next(session.generate(max_tokens=1))

    with pytest.raises(CancelledError):
        session.prefill(random_ids(100), progress=in_chunks(cancel, 1))
    assert session.position == CHUNK


def test_decode_is_not_cut(checkpoint: Path, alarm: Callable[[float], None]) -> None:
    """Ctrl-C during decode arrives after the token: it is part of the session, or it was not begun."""
    with lily.Model.load(checkpoint, threads=THREADS) as model, model.session() as session:
        session.prefill([1])
        for number in range(20):
            try:
                alarm(2e-4)
                while True:
                    session.decode(number)
            except KeyboardInterrupt:
                pass
            assert session.logits is not None
        logits = np.array(session.logits)
        assert np.array_equal(logits, fresh_logits(model, session.tokens))
