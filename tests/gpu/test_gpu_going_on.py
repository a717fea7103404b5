"""What a session goes on from after a generation: other choices, failures, snapshots, states, longer contexts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lily
from deferred_device import deferred_device, model_on, run_stage
from engine_helpers import random_ids
from gpu_models import GPU_CONFIG
from lily.errors import BackendError, LilyError
from synthetic import write_checkpoint

PROMPT = random_ids(7, seed=4)
GREEDY = lily.Sampling.greedy()


def logits_after(model: lily.Model, ids: list[int], rest: list[int]) -> np.ndarray:
    with model.session() as session:
        logits = session.prefill(ids)
        for token in rest:
            logits = session.decode(token)
        return np.array(logits)


@pytest.fixture(scope="module", params=["sim", "cpu"])
def any_model(request: pytest.FixtureRequest, checkpoint: Path) -> Iterator[lily.Model]:
    with lily.Model.load(checkpoint, backend=request.param, threads=1) as loaded:
        yield loaded


def test_a_step_in_flight_that_chose_otherwise_is_not_taken(model: lily.Model) -> None:
    """The step that ran ahead picked the greedy token after its own; a generation that samples must pick anew."""
    differing = 0
    with model.session() as session:
        session.prefill(PROMPT)
        start = session.snapshot()
        for seed in range(12):
            session.restore(start)
            generation = iter(session.generate(6, sampling=GREEDY, stop_tokens=()))
            greedy = [next(generation) for _ in range(3)]
            sampling = lily.Sampling(temperature=1.5, top_k=2, seed=seed)
            with session.fork() as fork:
                expected = list(fork.generate(4, sampling=sampling, stop_tokens=()))
                fork.restore(start)
                differing += list(fork.generate(7, sampling=GREEDY, stop_tokens=()))[3:] != expected
            assert list(session.generate(4, sampling=sampling, stop_tokens=())) == expected
            assert session.tokens == PROMPT + greedy + expected
    assert differing > 2


def test_a_step_that_failed_alone_before_another_asks_for_a_reset(checkpoint: Path, model: lily.Model) -> None:
    """The step behind it completes, and has written over the state that the failed one read."""
    failing: list[bool] = []

    def run_or_fail(launches: list[Any]) -> None:
        if failing:
            failing.clear()
            raise RuntimeError("injected failure")
        run_stage(launches)

    with model.session() as session:
        session.prefill(PROMPT)
        expected = list(session.generate(8, sampling=GREEDY, stop_tokens=()))
    with model_on(type(deferred_device())(run_or_fail), checkpoint) as late, late.session() as session:
        session.prefill(PROMPT)
        generation = iter(session.generate(8, sampling=GREEDY, stop_tokens=()))
        assert [next(generation) for _ in range(2)] == expected[:2]
        failing.append(True)
        with pytest.raises(BackendError, match="injected failure"):
            list(generation)
        assert not failing
        for go_on in (lambda: session.decode(1), lambda: list(session.generate(2)), session.snapshot):
            with pytest.raises(LilyError, match="reset"):
                go_on()
        session.reset()
        session.prefill(PROMPT)
        assert list(session.generate(8, sampling=GREEDY, stop_tokens=())) == expected


def test_the_cache_has_the_logits_of_its_own_position(checkpoint: Path, model: lily.Model) -> None:
    """After a generation on the device the host's copy of logits is an older one."""
    with lily.Model.load(checkpoint, backend="sim", prefix_cache_bytes=64 << 20) as cached:
        with cached.session() as session:
            session.prefill(PROMPT)
            tokens = list(session.generate(6, sampling=GREEDY, stop_tokens=()))
            cached.cache.insert(session)
        known = PROMPT + tokens[:-1]
        with cached.cached_session(known) as session:
            assert session.cached_tokens == len(known)
            assert np.array_equal(session.logits, logits_after(model, PROMPT, tokens[:-1]))


def test_logits_after_a_restored_state_are_its_own(any_model: lily.Model) -> None:
    with any_model.session() as session:
        empty = session.snapshot()
        session.prefill(PROMPT)
        logits, snapshot = np.array(session.logits), session.snapshot()
        for _ in range(2):
            tokens = list(session.generate(4, sampling=GREEDY, stop_tokens=()))
            session.restore(snapshot)
            assert session.tokens == PROMPT
            assert np.array_equal(session.logits, logits)
        assert list(session.generate(4, sampling=GREEDY, stop_tokens=())) == tokens
        session.restore(empty)
        assert session.tokens == [] and session.logits is None
        assert np.array_equal(session.prefill(PROMPT), logits)


def test_a_longer_context_in_the_memory_of_an_earlier_one(tmp_path: Path) -> None:
    """Nothing moves when a context grows in memory that is there, but the number of attention's blocks does."""
    config = {**GPU_CONFIG, "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 256}
    checkpoint = write_checkpoint(tmp_path, config, seed=3, group_size=32)
    options = lily.GpuOptions(blocked_attention_threshold=1)
    ids = random_ids(700, seed=2)
    with lily.Model.load(checkpoint, backend="sim", options=options, prefix_cache_bytes=0) as model:
        with model.session() as session:
            session.prefill(ids)
            session.reset()
            session.prefill(ids[:508])
            got = [np.array(session.decode(token)) for token in ids[508:516]]
        with model.session() as fresh:
            fresh.prefill(ids[:508])
            for token, logits in zip(ids[508:516], got, strict=True):
                assert np.array_equal(fresh.decode(token), logits)
