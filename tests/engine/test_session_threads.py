"""Sessions in threads: one caller at a time each, any thread, the same results as alone."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import lily
from engine_helpers import CONTEXT, fresh_logits, greedy, in_chunks, random_ids
from lily.errors import BusyError

MANY = 16


def test_a_second_caller_is_refused(model: lily.Model) -> None:
    ids = random_ids(100, 1)
    refused: list[type] = []
    with model.session() as session, ThreadPoolExecutor(1) as other:
        session.prefill(ids[:5])
        uses = [
            lambda: session.prefill([1]),
            lambda: session.decode(1),
            lambda: session.score([1, 2]),
            lambda: next(session.generate(max_tokens=1)),
            session.reset,
            session.close,
            lambda: session.position,
            lambda: session.tokens,
            lambda: session.logits,
        ]

        def intrude(done: int, total: int) -> None:
            for use in uses:
                with pytest.raises(BusyError, match="one session for each thread"):
                    other.submit(use).result(timeout=30)
                refused.append(BusyError)

        logits = session.prefill(ids[5:], progress=in_chunks(intrude, 2))
        assert len(refused) == len(uses)
        assert np.array_equal(logits, fresh_logits(model, ids))
        assert session.tokens == ids


def test_observers_never_make_a_call_fail(model: lily.Model) -> None:
    """A thread that polls the properties may be refused itself, but does not disturb the caller."""
    finished = threading.Event()
    positions: list[int] = []

    def observe() -> None:
        while not finished.is_set():
            try:
                tokens, position = session.tokens, session.position
                assert position - len(tokens) in (0, 1)
                positions.append(position)
                repr(session)
            except BusyError:
                pass
            time.sleep(0)

    with model.session() as session, ThreadPoolExecutor(2) as observers:
        session.prefill([1, 2, 3])
        running = [observers.submit(observe) for _ in range(2)]
        try:
            made = list(session.generate(max_tokens=150, sampling=lily.Sampling.greedy(), stop_tokens=()))
            for token in made[:50]:
                session.decode(token)
        finally:
            finished.set()
        for observer in running:
            observer.result(timeout=30)
        assert session.tokens == [1, 2, 3, *made, *made[:50]]
        assert positions and positions == sorted(positions)


def test_working_memory_is_read_meanwhile(checkpoint: Path) -> None:
    """The buffers grow while another thread asks how large they are."""
    finished = threading.Event()
    sizes: list[int] = []

    def observe(model: lily.Model) -> None:
        while not finished.is_set():
            sizes.append(model.scratch_bytes)
            time.sleep(0)

    with lily.Model.load(checkpoint, threads=2) as model, ThreadPoolExecutor(1) as observer:
        running = observer.submit(observe, model)
        try:
            for count in range(1, 40):
                fresh_logits(model, random_ids(7 * count, count))
        finally:
            finished.set()
        running.result(timeout=30)
        assert sizes == sorted(sizes)
        assert sizes[-1] <= model.scratch_bytes


def test_many_sessions_at_once(model: lily.Model) -> None:
    prompts = [random_ids(10 + 7 * number, number) for number in range(MANY)]
    expected = [greedy(model, prompt, 12) for prompt in prompts]
    assert len({tuple(tokens) for tokens in expected}) > MANY // 2
    start = threading.Barrier(MANY)

    def run(prompt: list[int]) -> list[int]:
        start.wait(timeout=30)
        return greedy(model, prompt, 12)

    with ThreadPoolExecutor(MANY) as pool:
        assert list(pool.map(run, prompts)) == expected


def test_interleaved_token_by_token(model: lily.Model) -> None:
    prompts = [random_ids(20 + number, 50 + number) for number in range(5)]
    sessions = [model.prefill(prompt) for prompt in prompts]
    generations = [
        session.generate(max_tokens=10, sampling=lily.Sampling.greedy(), stop_tokens=()) for session in sessions
    ]
    made = list(zip(*generations, strict=True))
    assert [list(tokens) for tokens in zip(*made, strict=True)] == [greedy(model, prompt, 10) for prompt in prompts]
    for session in sessions:
        session.close()


def test_load_prefill_and_decode_in_different_threads(checkpoint: Path, model: lily.Model) -> None:
    ids = random_ids(40, 3)

    def elsewhere(call, *arguments):
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(call, *arguments).result(timeout=60)

    loaded = elsewhere(lambda: lily.Model.load(checkpoint, threads=2))
    session = elsewhere(loaded.session)
    assert np.array_equal(elsewhere(session.prefill, ids[:-1]), fresh_logits(model, ids[:-1]))
    assert np.array_equal(elsewhere(session.decode, ids[-1]), fresh_logits(model, ids))
    elsewhere(loaded.close)
    assert loaded.closed


def test_asyncio(model: lily.Model) -> None:
    prompts = [random_ids(30, seed) for seed in range(4)]

    async def run() -> list[list[int]]:
        return await asyncio.gather(*(asyncio.to_thread(greedy, model, prompt, 5) for prompt in prompts))

    assert asyncio.run(run()) == [greedy(model, prompt, 5) for prompt in prompts]


def test_the_interpreter_runs_meanwhile(checkpoint: Path) -> None:
    """During one long chunk, which calls no Python, this thread is never held up for most of the time."""
    duration = 0.0

    def prefill() -> None:
        nonlocal duration
        begin = time.perf_counter()
        session.prefill(random_ids(CONTEXT, 2))
        duration = time.perf_counter() - begin

    with lily.Model.load(checkpoint, threads=1, prefill_chunk=CONTEXT) as model, ThreadPoolExecutor(1) as pool:
        session = model.session()
        last, longest = time.perf_counter(), 0.0
        running = pool.submit(prefill)
        while not running.done():
            now = time.perf_counter()
            last, longest = now, max(longest, now - last)
        longest = max(longest, time.perf_counter() - last)
        running.result()
    assert duration > 0.02
    assert longest < duration / 2


def test_other_sessions_inside_a_callback(model: lily.Model) -> None:
    """Between chunks nothing is locked: a callback may compute with other sessions of the model."""
    ids = random_ids(50, 5)
    inside: list[np.ndarray] = []
    with model.session() as session:
        session.prefill(ids, progress=lambda done, total: inside.append(fresh_logits(model, ids[:done])))
        assert np.array_equal(inside[-1], session.logits)
    assert len(inside) == 4
