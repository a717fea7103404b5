"""Wrong arguments, full contexts and closed objects: one clear error each, and the session as it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lily
from engine_helpers import THREADS, VOCAB, fresh_logits, random_ids
from lily.errors import ClosedError, ContextOverflowError, InvalidArgumentError

WRONG_IDS: list[tuple[Any, str]] = [
    ([], "no token ids"),
    ((), "no token ids"),
    (np.array([], dtype=np.int32), "no token ids"),
    ([[1, 2], [3, 4]], r"shape \(2, 2\)"),
    ([[1], [2, 3]], "flat sequence"),
    (np.zeros((1, 3), dtype=np.int64), r"shape \(1, 3\)"),
    ([1.0, 2.0], "float64"),
    ([1, 2.5], "float64"),
    ([True, False], "bool"),
    (["1", "2"], "must be integers"),
    ("12", "not str"),
    (b"12", "not bytes"),
    (7, "not int"),
    (None, "not NoneType"),
    ([1, None], "not NoneType"),
    ((token for token in [1, 2]), "not generator"),
    ({1, 2}, "not set"),
    ([-1], "-1"),
    ([1, 2, -7], "-7 at index 2"),
    ([VOCAB], f"{VOCAB} at index 0"),
    ([0, VOCAB + 1], f"{VOCAB + 1} at index 1"),
    ([1 << 31], str(1 << 31)),
    ([1, 1 << 40], str(1 << 40)),
    ([-(1 << 40)], str(-(1 << 40))),
    (np.array([1 << 63], dtype=np.uint64), str(1 << 63)),
    ([1 << 70], "large"),
]


@pytest.fixture
def started(session: lily.Session) -> lily.Session:
    session.prefill(random_ids(20, 2))
    return session


def expect_unchanged(session: lily.Session, call: Callable[[], object], error: type, message: str) -> None:
    tokens, position, logits = session.tokens, session.position, session.logits
    assert logits is not None
    before = logits.copy()
    with pytest.raises(error, match=message):
        call()
    assert (session.tokens, session.position) == (tokens, position)
    assert session.logits is not None and np.array_equal(session.logits, before)
    following = random_ids(3, 4)
    assert np.array_equal(session.prefill(following), fresh_logits(session.model, tokens + following))


@pytest.mark.parametrize(("ids", "message"), WRONG_IDS)
def test_wrong_ids(started: lily.Session, ids: Any, message: str) -> None:
    expect_unchanged(started, lambda: started.prefill(ids), InvalidArgumentError, message)


@pytest.mark.parametrize("token", [-1, VOCAB, 1 << 31, 1 << 40, 1.0, True, None, "1", [1], np.float32(1)])
def test_wrong_token(started: lily.Session, token: Any) -> None:
    expect_unchanged(started, lambda: started.decode(token), InvalidArgumentError, "token")


@pytest.mark.parametrize(("ids", "message"), [*WRONG_IDS[:3], ([5], "at least two"), ([1, VOCAB], "index 1")])
def test_wrong_ids_to_score(started: lily.Session, ids: Any, message: str) -> None:
    expect_unchanged(started, lambda: started.score(ids), InvalidArgumentError, message)


def test_wrong_progress(started: lily.Session) -> None:
    for call in (started.prefill, started.score):
        expect_unchanged(started, lambda call=call: call([1, 2], progress=3), InvalidArgumentError, "callable")


@pytest.mark.parametrize("kind", [list, tuple, np.array, bytearray])
def test_sequences_of_ids(model: lily.Model, kind: Callable[[list[int]], Any]) -> None:
    ids = random_ids(9, 6, 256)
    with model.session() as session:
        assert np.array_equal(session.prefill(kind(ids)), fresh_logits(model, ids))
        assert session.tokens == ids
        assert all(type(token) is int for token in session.tokens)


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", ">i2", "i4", ">i4", "u4", "i8", ">i8", "u8"])
def test_integer_arrays(model: lily.Model, dtype: str) -> None:
    ids = random_ids(18, 7, 128)
    array = np.array(ids, dtype=dtype)
    expected = fresh_logits(model, ids[::-2])
    with model.session() as session:
        assert np.array_equal(session.prefill(array[::-2]), expected)
        assert np.array_equal(session.decode(array[0]), fresh_logits(model, [*ids[::-2], ids[0]]))
    with model.session() as session:
        assert np.array_equal(session.prefill(range(3, 9)), fresh_logits(model, [3, 4, 5, 6, 7, 8]))


def test_the_callers_array_may_change_meanwhile(session: lily.Session) -> None:
    ids = random_ids(60, 8)
    array = np.array(ids, dtype=np.int32)

    def progress(done: int, total: int) -> None:
        array[:] = 1 << 30

    assert np.array_equal(session.prefill(array, progress=progress), fresh_logits(session.model, ids))
    assert session.tokens == ids


def test_context_overflow(checkpoint: Path) -> None:
    ids = random_ids(50, 9)
    with lily.Model.load(checkpoint, threads=THREADS, max_context=50, prefill_chunk=7) as model:
        assert model.max_context == 50
        with model.session() as session:
            with pytest.raises(ContextOverflowError, match=r"has 51 tokens.*maximum context is 50"):
                session.prefill([*ids, 1])
            assert session.position == 0
            session.prefill(ids[:40])
            with pytest.raises(ContextOverflowError, match=r"holds 40 tokens and cannot take 11 more"):
                session.prefill(random_ids(11, 1))
            assert session.tokens == ids[:40] and session.logits is not None
            full = np.array(session.prefill(ids[40:]))
            assert np.array_equal(full, fresh_logits(model, ids))
            with pytest.raises(ContextOverflowError, match="holds 50 tokens"):
                session.decode(1)
            assert np.array_equal(session.logits, full)
            assert len(session.score(ids)) == 49
            with pytest.raises(ContextOverflowError, match=r"has 51 tokens.*maximum context is 50"):
                session.score([*ids, 1])
            session.reset()
            assert np.array_equal(session.prefill(ids), full)


def test_closed_session(model: lily.Model) -> None:
    session = model.session()
    session.prefill([1, 2, 3])
    generation = session.generate(max_tokens=5, sampling=lily.Sampling.greedy(), stop_tokens=())
    next(generation)
    session.close()
    session.close()
    session.cancel()
    uses: list[Callable[[], object]] = [
        lambda: session.prefill([1]),
        lambda: session.decode(1),
        lambda: session.score([1, 2]),
        lambda: next(generation),
        lambda: list(session.generate(max_tokens=1)),
        session.reset,
        lambda: session.tokens,
        lambda: session.position,
        lambda: session.logits,
        lambda: session.state_bytes,
        lambda: model.decode(session, 1),
    ]
    for use in uses[:3] + uses[4:]:
        with pytest.raises(ClosedError, match=r"model\.session\(\)"):
            use()
    with pytest.raises(ClosedError):
        next(generation)


def test_closed_model(checkpoint: Path) -> None:
    model = lily.Model.load(checkpoint, threads=THREADS)
    first, second = model.session(), model.prefill([1, 2])
    model.close()
    model.close()
    assert model.closed
    for session in (first, second):
        with pytest.raises(ClosedError):
            session.prefill([1])
    for use in (
        model.session,
        lambda: model.prefill([1]),
        model.plan,
        lambda: model.max_context,
        lambda: model.threads,
    ):
        with pytest.raises(ClosedError, match=r"Model\.load"):
            use()
    assert model.config.vocab_size == VOCAB
