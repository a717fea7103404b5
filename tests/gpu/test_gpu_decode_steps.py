"""Decode steps in flight: order of submissions, stops, choices of the caller's own, failures, cancellation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lily
from deferred_device import deferred_device, model_on
from engine_helpers import random_ids
from lily.errors import BackendError, CancelledError, ContextOverflowError

PROMPT = random_ids(7, seed=4)
GREEDY = lily.Sampling.greedy()


@pytest.fixture
def device() -> Any:
    return deferred_device()


@pytest.fixture
def late(device: Any, checkpoint: Path) -> Iterator[lily.Model]:
    """The model on a device that runs passes as late as it may."""
    with model_on(device, checkpoint) as model:
        yield model


def stepwise(model: lily.Model, prompt: list[int], count: int) -> list[int]:
    """The greedy continuation by the caller's own choice, one finished step after the other."""
    with model.session() as session:
        tokens = [int(session.prefill(prompt).argmax())]
        while len(tokens) < count:
            tokens.append(int(session.decode(tokens[-1]).argmax()))
    return tokens


def logits_after(model: lily.Model, prompt: list[int], rest: list[int]) -> np.ndarray:
    with model.session() as session:
        logits = session.prefill(prompt)
        for token in rest:
            logits = session.decode(token)
        return np.array(logits)


def test_tokens_picked_on_the_device_are_those_of_finished_steps(late: lily.Model, model: lily.Model) -> None:
    with late.session() as session:
        session.prefill(PROMPT)
        assert list(session.generate(9, sampling=GREEDY, stop_tokens=())) == stepwise(model, PROMPT, 9)


def test_two_steps_are_in_flight_and_each_is_waited_for_once(device: Any, late: lily.Model) -> None:
    with late.session() as session:
        session.prefill(PROMPT)
        before = len(device.events)
        tokens = list(session.generate(8, sampling=GREEDY, stop_tokens=()))
    events = device.events[before:]
    assert len(tokens) == 8
    in_flight = most = 0
    for event in events:
        in_flight += 1 if event.startswith("submit") else -1
        most = max(most, in_flight)
    assert most == 2
    waits = [event for event in events if event.startswith("wait")]
    assert len(waits) == len(set(waits)) == 8  # seven steps, and the one that ran ahead


def test_without_hand_off_one_step_is_in_flight(device: Any, checkpoint: Path, model: lily.Model) -> None:
    with model_on(device, checkpoint, options=lily.GpuOptions().without("D2")) as late, late.session() as session:
        session.prefill(PROMPT)
        before = len(device.events)
        assert list(session.generate(6, sampling=GREEDY, stop_tokens=())) == stepwise(model, PROMPT, 6)
        events = device.events[before:]
    for first, second in zip(events[::2], events[1::2], strict=True):
        assert first.split()[0] == "submit" and second.split()[0] == "wait"
        assert first.split()[1] == second.split()[1]


@pytest.mark.parametrize("at", [0, 1, 2, 5])
def test_a_stop_token_ends_the_sequence_before_it(late: lily.Model, model: lily.Model, at: int) -> None:
    expected = stepwise(model, PROMPT, 8)
    stop = expected[at]
    first = expected.index(stop)
    with late.session() as session:
        session.prefill(PROMPT)
        assert list(session.generate(8, sampling=GREEDY, stop_tokens={stop})) == expected[:first]
        assert session.tokens == PROMPT + expected[:first]
        # Goes on with a token of the caller's as if nothing had run ahead.
        other = (stop + 1) % 301
        got = session.decode(other)
        assert np.array_equal(got, logits_after(model, PROMPT, [*expected[:first], other]))


def test_logits_and_logprobs_are_those_of_the_token_that_was_picked(late: lily.Model, model: lily.Model) -> None:
    """They stay on the device until somebody asks."""
    expected = stepwise(model, PROMPT, 6)
    with late.session() as session:
        session.prefill(PROMPT)
        for count, _ in enumerate(session.generate(6, sampling=GREEDY, stop_tokens=())):
            if count % 2:
                assert np.array_equal(session.logits, logits_after(model, PROMPT, expected[:count]))
        session.reset()
        session.prefill(PROMPT)
        for count, token in enumerate(session.generation(6, sampling=GREEDY, stop_tokens=(), logprobs=2)):
            logits = logits_after(model, PROMPT, expected[:count]).astype(np.float64)
            exact = logits[token.id] - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
            assert token.id == expected[count] == token.top_logprobs[0][0]
            assert token.logprob == pytest.approx(exact, abs=1e-4)


def test_leaving_a_generation_and_going_on_is_exact(late: lily.Model, model: lily.Model) -> None:
    expected = stepwise(model, PROMPT, 6)
    with late.session() as session:
        session.prefill(PROMPT)
        generation = iter(session.generate(6, sampling=GREEDY, stop_tokens=()))
        assert [next(generation) for _ in range(3)] == expected[:3]
        more = random_ids(5, seed=8)
        got = np.array(session.prefill(more))
        assert session.tokens == PROMPT + expected[:3] + more
    with model.session() as session:
        session.prefill(PROMPT)
        for token in expected[:3]:
            session.decode(token)
        assert np.array_equal(got, session.prefill(more))


def test_two_sessions_in_turn_do_not_disturb_each_other(late: lily.Model, model: lily.Model) -> None:
    prompts = [PROMPT, random_ids(5, seed=9)]
    sessions = [late.session() for _ in prompts]
    for session, prompt in zip(sessions, prompts, strict=True):
        session.prefill(prompt)
    generations = [iter(session.generate(6, sampling=GREEDY, stop_tokens=())) for session in sessions]
    produced: list[list[int]] = [[], []]
    for _ in range(6):
        for tokens, generation in zip(produced, generations, strict=True):
            tokens.append(next(generation))
    assert produced == [stepwise(model, prompt, 6) for prompt in prompts]


def test_forks_and_snapshots_are_exact_while_a_step_is_in_flight(late: lily.Model, model: lily.Model) -> None:
    expected = stepwise(model, PROMPT, 8)
    with late.session() as session:
        session.prefill(PROMPT)
        generation = iter(session.generate(8, sampling=GREEDY, stop_tokens=()))
        assert [next(generation) for _ in range(3)] == expected[:3]
        snapshot = session.snapshot()
        with session.fork() as fork:
            assert fork.tokens == PROMPT + expected[:3]
            other = random_ids(2, seed=12)
            assert np.array_equal(fork.decode(other[0]), logits_after(model, PROMPT, [*expected[:3], other[0]]))
        assert list(generation) == expected[3:]
        session.restore(snapshot)
        assert session.tokens == PROMPT + expected[:3]
        assert list(session.generate(5, sampling=GREEDY, stop_tokens=())) == expected[3:]


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_failed_step_invents_no_token_and_asks_for_a_reset(
    device: Any, late: lily.Model, model: lily.Model, steps: int
) -> None:
    """The step behind it was submitted already, and has begun to write over the state."""
    expected = stepwise(model, PROMPT, 8)
    with late.session() as session:
        session.prefill(PROMPT)
        device.failing_from = device.submitted + steps
        produced: list[int] = []
        with pytest.raises(BackendError, match="injected failure"):
            produced.extend(session.generate(8, sampling=GREEDY, stop_tokens=()))
        assert produced == expected[: steps + 1]
        device.failing_from = 1 << 60
        with pytest.raises(BackendError, match="reset"):
            list(session.generate(8 - len(produced), sampling=GREEDY, stop_tokens=()))
        session.reset()
        session.prefill(PROMPT)
        assert list(session.generate(8, sampling=GREEDY, stop_tokens=())) == expected


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_failed_step_with_none_behind_it_loses_nothing(
    device: Any, checkpoint: Path, model: lily.Model, steps: int
) -> None:
    expected = stepwise(model, PROMPT, 8)
    with model_on(device, checkpoint, options=lily.GpuOptions().without("D2")) as late, late.session() as session:
        session.prefill(PROMPT)
        device.failing_from = device.submitted + steps
        produced: list[int] = []
        with pytest.raises(BackendError, match="injected failure"):
            produced.extend(session.generate(8, sampling=GREEDY, stop_tokens=()))
        assert produced == expected[: steps + 1]
        device.failing_from = 1 << 60
        produced += session.generate(8 - len(produced), sampling=GREEDY, stop_tokens=())
        assert produced == expected
        assert session.tokens == PROMPT + expected


def test_a_failed_prompt_chunk_keeps_the_chunks_before(device: Any, checkpoint: Path, model: lily.Model) -> None:
    prompt = random_ids(12, seed=5)
    with model_on(device, checkpoint, prefill_chunk=4) as late, late.session() as session:
        device.failing_from = device.submitted + 1
        with pytest.raises(BackendError, match="injected failure"):
            session.prefill(prompt)
        device.failing_from = 1 << 60
        assert session.tokens == prompt[:4]
        got = np.array(session.prefill(prompt[4:]))
        with lily.Model.load(checkpoint, backend="sim", prefill_chunk=4) as other, other.session() as fresh:
            assert np.array_equal(got, fresh.prefill(prompt))


def test_cancelling_keeps_what_was_computed(late: lily.Model, model: lily.Model) -> None:
    expected = stepwise(model, PROMPT, 8)
    with late.session() as session:
        session.prefill(PROMPT)
        generation = iter(session.generate(8, sampling=GREEDY, stop_tokens=()))
        produced = [next(generation) for _ in range(4)]
        session.cancel()
        with pytest.raises(CancelledError):
            next(generation)
        assert session.tokens == PROMPT + produced == PROMPT + expected[:4]
        assert list(session.generate(4, sampling=GREEDY, stop_tokens=())) == expected[4:]


def test_no_step_runs_past_the_context(device: Any, checkpoint: Path, model: lily.Model) -> None:
    with model_on(device, checkpoint, max_context=10) as late, late.session() as session:
        session.prefill(PROMPT)
        assert list(session.generate(sampling=GREEDY, stop_tokens=())) == stepwise(model, PROMPT, 3)
        with pytest.raises(ContextOverflowError):
            session.decode(1)


def test_memory_that_runs_out_is_an_error_and_the_session_goes_on(
    device: Any, checkpoint: Path, model: lily.Model
) -> None:
    long = random_ids(300, seed=6)  # the cache grows past its first 256 positions
    with model_on(device, checkpoint) as late, late.session() as session:
        session.prefill(PROMPT)
        device.allocation_limit = 1000
        with pytest.raises(MemoryError):
            session.prefill(long)
        device.allocation_limit = 1 << 60
        assert session.tokens == PROMPT
        got = np.array(session.prefill(long))
    with model.session() as session:
        session.prefill(PROMPT)
        assert np.array_equal(got, session.prefill(long))


@pytest.mark.parametrize("whole_prompt", [True, False])
def test_a_cache_that_could_not_move_is_the_one_from_before(
    device: Any, late: lily.Model, model: lily.Model, whole_prompt: bool
) -> None:
    prompt, rest = random_ids(256, seed=6), random_ids(3, seed=7)  # the cache moves where it grows past 256 positions

    def go_on(session: lily.Session) -> np.ndarray:
        if whole_prompt:
            return np.array(session.prefill(rest))
        return np.array([session.decode(token) for token in rest])

    with late.session() as session:
        session.prefill(prompt)
        device.failing_from = device.submitted  # the pass that copies keys and values
        with pytest.raises(BackendError, match="injected failure"):
            go_on(session)
        device.failing_from = 1 << 60
        assert session.tokens == prompt
        got = go_on(session)
    with model.session() as session:
        session.prefill(prompt)
        assert np.array_equal(got, go_on(session))


def test_a_cache_that_cannot_move_for_the_step_ahead_loses_nothing(
    device: Any, late: lily.Model, model: lily.Model
) -> None:
    prompt = random_ids(254, seed=6)  # the second token's step runs ahead into position 256
    expected = stepwise(model, prompt, 6)
    with late.session() as session:
        session.prefill(prompt)
        device.failing_from = device.submitted + 2
        produced: list[int] = []
        with pytest.raises(BackendError, match="injected failure"):
            produced.extend(session.generate(6, sampling=GREEDY, stop_tokens=()))
        device.failing_from = 1 << 60
        produced += session.generate(6 - len(produced), sampling=GREEDY, stop_tokens=())
        assert produced == expected
        assert session.tokens == prompt + expected


def test_closing_with_steps_in_flight_waits_for_them(device: Any, checkpoint: Path) -> None:
    with model_on(device, checkpoint) as late:
        session = late.session()
        session.prefill(PROMPT)
        next(iter(session.generate(4, sampling=GREEDY, stop_tokens=())))
        session.close()
    submitted = {event.split()[1] for event in device.events if event.startswith("submit")}
    waited = {event.split()[1] for event in device.events if event.startswith("wait")}
    assert submitted == waited


@pytest.mark.parametrize(
    "sampling", [lily.Sampling(temperature=0.8, top_k=20, top_p=0.9, seed=5), lily.Sampling(seed=3)]
)
def test_tokens_sampled_on_the_device_are_the_cpu_samplers(
    late: lily.Model, checkpoint: Path, sampling: lily.Sampling
) -> None:
    with late.session() as session:
        session.prefill(PROMPT)
        picked = list(session.generate(12, sampling=sampling, stop_tokens=()))
    options = lily.GpuOptions().without("D2")
    with lily.Model.load(checkpoint, backend="sim", options=options) as other, other.session() as session:
        session.prefill(PROMPT)
        assert list(session.generate(12, sampling=sampling, stop_tokens=())) == picked
