"""score(): the log-probabilities that every step's logits imply, whatever the chunks; the session is not touched."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import lily
from engine_helpers import THREADS, random_ids
from lily.errors import InvalidArgumentError

TOLERANCE = 2e-6  # of a float32 result: half a unit in the last place at 16 is 1e-6


def from_logits(model: lily.Model, ids: list[int]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Log-probabilities of ids[1:] and the most probable ids, from the logits of single steps in float64."""
    values, chosen = [], []
    with model.session() as session:
        for token, following in pairwise(ids):
            logits = session.decode(token).astype(np.float64)
            shifted = logits - logits.max()
            values.append(shifted[following] - np.log(np.exp(shifted).sum()))
            chosen.append(int(logits.argmax()))
    return np.array(values), np.array(chosen)


@pytest.mark.parametrize("length", [2, 3, 16, 17, 18, 33, 34, 130, 290])
def test_equals_the_log_softmax_of_every_step(model: lily.Model, length: int) -> None:
    ids = random_ids(length, length)
    with model.session() as session:
        log_probabilities, argmax = session.score(ids, return_argmax=True)
    expected, chosen = from_logits(model, ids)
    assert (log_probabilities.dtype, log_probabilities.shape) == (np.float32, (length - 1,))
    assert (argmax.dtype, argmax.shape) == (np.int32, (length - 1,))
    np.testing.assert_allclose(log_probabilities, expected, rtol=1e-6, atol=TOLERANCE)
    assert np.array_equal(argmax, chosen)
    assert (log_probabilities <= 0).all()
    perplexity = float(np.exp(-log_probabilities.astype(np.float64).mean()))
    assert perplexity == pytest.approx(float(np.exp(-expected.mean())), rel=1e-5)


@pytest.mark.parametrize("chunk", [1, 7, 31, 32, 33, 512])
@pytest.mark.parametrize("threads", [1, THREADS])
def test_chunks_and_threads(model: lily.Model, checkpoint: Path, chunk: int, threads: int) -> None:
    ids = random_ids(140, 8)
    with model.session() as session:
        expected = session.score(ids, return_argmax=True)
    with lily.Model.load(checkpoint, prefill_chunk=chunk, threads=threads) as other, other.session() as session:
        found = session.score(ids, return_argmax=True)
    assert all(np.array_equal(*pair) for pair in zip(found, expected, strict=True))


def test_other_targets(session: lily.Session) -> None:
    ids = random_ids(70, 3)
    scores, argmax = session.score(ids, return_argmax=True)
    assert np.array_equal(session.score(ids, targets=ids[1:]), scores)
    best = session.score(ids, targets=argmax)
    assert (best >= scores).all()
    assert np.array_equal(best == scores, argmax == ids[1:])
    for targets in (ids, ids[2:], []):
        with pytest.raises(InvalidArgumentError):
            session.score(ids, targets=targets)
    with pytest.raises(InvalidArgumentError, match="outside the vocabulary"):
        session.score(ids, targets=[*ids[2:], 10**6])


def test_the_session_stays_as_it_is(session: lily.Session) -> None:
    ids = random_ids(50, 9)
    alone = np.array(session.score(ids))
    assert (session.position, session.logits) == (0, None)
    session.prefill([1, 2, 3])
    made = list(session.generate(max_tokens=2, sampling=lily.Sampling.greedy(), stop_tokens=()))
    logits = np.array(session.logits)
    assert np.array_equal(session.score(ids), alone)
    assert session.tokens == [1, 2, 3, *made]
    assert np.array_equal(session.logits, logits)
    with session.model.session() as other:
        expected = other.prefill([1, 2, 3, *made, 4])
        assert np.array_equal(session.decode(4), expected)


def test_scores_are_read_only_and_stay(session: lily.Session) -> None:
    scores = session.score(random_ids(30, 1))
    copy = scores.copy()
    session.score(random_ids(40, 2))
    assert np.array_equal(scores, copy)
    with pytest.raises(ValueError, match="read-only"):
        scores[0] = 0


def test_one_token_has_no_score(session: lily.Session) -> None:
    with pytest.raises(lily.errors.InvalidArgumentError, match="at least two"):
        session.score([1])
