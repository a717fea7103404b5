"""Sequences that share memory on a GPU engine: whatever one of them does, the others go on as if they were alone."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lily
from deferred_device import deferred_device, model_on
from engine_helpers import random_ids

PROMPT = random_ids(20, seed=91)
GREEDY = lily.Sampling.greedy()


def logits_after(model: lily.Model, parts: list[list[int]]) -> np.ndarray:
    """In a session of its own, with the same prompts and, for single ids, the same steps."""
    with model.session() as session:
        for part in parts:
            logits = session.decode(part[0]) if len(part) == 1 else session.prefill(part)
        return np.array(logits)


def go_on(session: lily.Session, part: list[int]) -> np.ndarray:
    return np.array(session.decode(part[0]) if len(part) == 1 else session.prefill(part))


# From the same position: prompts and steps, within the cache and beyond its first 256 positions.
PARTS = [random_ids(1, seed=92), random_ids(1, seed=93), random_ids(7, seed=94), random_ids(260, seed=95)]


@pytest.mark.parametrize("first", range(4))
@pytest.mark.parametrize("second", range(4))
def test_both_go_on_from_the_same_position(model: lily.Model, first: int, second: int) -> None:
    with model.session() as session:
        session.prefill(PROMPT)
        with session.fork() as fork:
            assert np.array_equal(go_on(fork, PARTS[first]), logits_after(model, [PROMPT, PARTS[first]]))
            assert np.array_equal(go_on(session, PARTS[second]), logits_after(model, [PROMPT, PARTS[second]]))
            for one, part in ((fork, PARTS[first]), (session, PARTS[second])):
                assert np.array_equal(one.decode(5), logits_after(model, [PROMPT, part, [5]]))


@pytest.mark.parametrize("forks", [1, 2])
def test_one_that_starts_anew_leaves_the_others(model: lily.Model, forks: int) -> None:
    other = random_ids(9, seed=96)
    with model.session() as session:
        session.prefill(PROMPT)
        copies = [session.fork() for _ in range(forks)]
        session.reset()
        assert np.array_equal(session.prefill(other), logits_after(model, [other]))
        assert np.array_equal(session.decode(3), logits_after(model, [other, [3]]))
        for copy in copies:
            assert np.array_equal(copy.decode(4), logits_after(model, [PROMPT, [4]]))
            copy.reset()
            assert np.array_equal(copy.prefill(PROMPT[:5]), logits_after(model, [PROMPT[:5]]))
            copy.close()
        assert np.array_equal(session.decode(6), logits_after(model, [other, [3], [6]]))


def test_a_fork_outlives_the_session_that_it_was_made_of(model: lily.Model) -> None:
    session = model.session()
    session.prefill(PROMPT)
    session.decode(3)
    fork = session.fork()
    session.decode(8)
    session.close()
    with fork:
        assert np.array_equal(fork.decode(9), logits_after(model, [PROMPT, [3], [9]]))


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_any_history_of_snapshots(checkpoint: Path, model: lily.Model, late: bool, seed: int) -> None:
    """Random steps, prompts, generations, snapshots and returns to them, on a device that runs passes late, too."""
    choose = random.Random(seed)
    device: Any = deferred_device()
    with model_on(device, checkpoint) if late else lily.Model.load(checkpoint, backend="sim") as subject:
        session = subject.session()
        session.prefill(PROMPT)
        history = [PROMPT]
        kept = [(session.snapshot(), list(history))]
        for turn in range(14):
            action = choose.choice(["step", "prompt", "generate", "keep", "return", "return"])
            if action == "return":
                snapshot, before = choose.choice(kept)
                session.restore(snapshot)
                history = list(before)
            elif action == "keep":
                kept.append((session.snapshot(), list(history)))
            elif action == "generate":  # its tokens are steps
                made = list(session.generate(3, sampling=GREEDY, stop_tokens=()))
                history += [[token] for token in made]
            else:
                part = random_ids(1 if action == "step" else 6, seed=100 * seed + turn)
                history.append(part)
                go_on(session, part)
        history.append([7])
        assert np.array_equal(session.decode(7), logits_after(model, history))
        for snapshot, before in kept:
            session.restore(snapshot)
            assert np.array_equal(session.decode(2), logits_after(model, [*before, [2]]))
        session.close()
