"""generate(): which tokens it yields, where it ends, and what the session holds afterwards."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lily
import lily_tiny
from engine_helpers import CONFIG, THREADS, VOCAB, fresh_logits, greedy, random_ids
from lily import Sampling
from lily.errors import ClosedError, ContextOverflowError, InvalidArgumentError
from synthetic import write_checkpoint

PROMPT = random_ids(25, 11)
GREEDY = Sampling.greedy()
WILD = Sampling(temperature=3.0)


def sampled(model: lily.Model, prompt: list[int], count: int, sampling: Sampling, seed: int = 1) -> list[int]:
    with model.session(seed=seed) as session:
        session.prefill(prompt)
        return list(session.generate(max_tokens=count, sampling=sampling, stop_tokens=()))


@pytest.fixture
def started(session: lily.Session) -> lily.Session:
    session.prefill(PROMPT)
    return session


@pytest.mark.parametrize("count", [0, 1, 2, 20, np.int64(3)])
def test_max_tokens(started: lily.Session, count: int) -> None:
    made = list(started.generate(max_tokens=count, sampling=WILD, stop_tokens=()))
    assert len(made) == count
    assert started.tokens == PROMPT + made
    assert started.position == len(PROMPT) + count


def test_greedy_is_the_argmax_step_by_step(started: lily.Session) -> None:
    made = list(started.generate(max_tokens=12, sampling=GREEDY, stop_tokens=()))
    with started.model.session() as other:
        logits = other.prefill(PROMPT)
        for token in made:
            assert token == int(logits.argmax())
            logits = other.decode(token)
    assert made == greedy(started.model, PROMPT, 12)
    assert sampled(started.model, PROMPT, 12, Sampling(temperature=2.0, top_k=1)) == made


def test_every_yielded_token_is_part_of_the_session(started: lily.Session) -> None:
    made: list[int] = []
    for token in started.generate(max_tokens=10, sampling=WILD, stop_tokens=()):
        assert type(token) is int
        made.append(token)
        assert started.tokens == PROMPT + made
        assert started.position == len(PROMPT) + len(made)


@pytest.mark.parametrize("place", [0, 1, 6])
def test_stop_tokens(started: lily.Session, place: int) -> None:
    made = sampled(started.model, PROMPT, 30, WILD, seed=3)
    stop = made[place]
    other = next(token for token in range(VOCAB) if token not in made)
    end = made.index(stop)
    stops: list[Any] = [{stop}, [other, stop], np.array([stop]), frozenset([stop, -1, 1 << 50])]
    for stop_tokens in stops:
        started.reset()
        started.prefill(PROMPT)
        found = list(started.generate(sampling=WILD, stop_tokens=stop_tokens, max_tokens=30))
        assert found == made[:end]
        assert started.tokens == PROMPT + found
    assert np.array_equal(started.decode(stop), fresh_logits(started.model, [*started.tokens]))


def test_the_models_stop_tokens_are_the_default(started: lily.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    made = sampled(started.model, PROMPT, 5, WILD, seed=3)
    monkeypatch.setitem(started.model.__dict__, "stop_tokens", frozenset([made[2]]))
    expected = made[: made.index(made[2])]
    assert list(started.generate(max_tokens=5, sampling=WILD)) == expected


@pytest.mark.parametrize("left_at", [1, 2, 9])
def test_leaving_the_loop_early(started: lily.Session, left_at: int) -> None:
    expected = sampled(started.model, PROMPT, 20, WILD, seed=3)
    made: list[int] = []
    for token in started.generate(max_tokens=20, sampling=WILD, stop_tokens=()):
        made.append(token)
        if len(made) == left_at:
            break
    assert started.tokens == PROMPT + made
    made += started.generate(max_tokens=20 - left_at, sampling=WILD, stop_tokens=())
    assert made == expected


def test_going_on_with_other_calls(started: lily.Session) -> None:
    model = started.model
    made = list(started.generate(max_tokens=3, sampling=WILD, stop_tokens=()))
    assert np.array_equal(started.logits, fresh_logits(model, PROMPT + made[:2]))  # the last one computed
    assert np.array_equal(started.decode(7), fresh_logits(model, [*PROMPT, *made, 7]))
    more = list(started.generate(max_tokens=2, sampling=WILD, stop_tokens=()))
    tokens = [*PROMPT, *made, 7, *more, 8, 9]
    assert np.array_equal(started.prefill([8, 9]), fresh_logits(model, tokens))
    assert started.tokens == tokens
    list(started.generate(max_tokens=1, sampling=WILD, stop_tokens=()))
    for wrong in ([], [VOCAB], [1.5]):
        position = started.position
        with pytest.raises(InvalidArgumentError):
            started.prefill(wrong)
        assert started.position == position
    started.reset()
    assert (started.tokens, started.position) == ([], 0)
    assert np.array_equal(started.prefill(PROMPT), fresh_logits(model, PROMPT))


@pytest.mark.parametrize("change", ["prefill", "decode", "reset", "reset and prefill", "generate", "restore"])
def test_changes_meanwhile_are_noticed(started: lily.Session, change: str) -> None:
    with started.model.prefill(random_ids(len(PROMPT) + 1, 98)) as other:
        same_length = other.snapshot()
    generation = started.generate(max_tokens=5, sampling=GREEDY, stop_tokens=())
    next(generation)
    if change == "prefill":
        started.prefill([1, 2])
    elif change == "decode":
        started.decode(1)
    elif change == "generate":
        next(started.generate(max_tokens=1, sampling=GREEDY, stop_tokens=()))
    elif change == "restore":
        started.restore(same_length)
    elif change == "reset":
        started.reset()
    else:  # to the same length: only the content differs
        started.reset()
        started.prefill(random_ids(len(PROMPT) + 1, 99))
    tokens = started.tokens
    with pytest.raises(InvalidArgumentError, match="changed while"):
        next(generation)
    assert started.tokens == tokens


def test_reading_meanwhile_is_fine(started: lily.Session) -> None:
    made = []
    for token in started.generate(max_tokens=5, sampling=GREEDY, stop_tokens=()):
        made.append(token)
        started.score([1, 2, 3])
        assert started.logits is not None and started.state_bytes > 0
    assert made == greedy(started.model, PROMPT, 5)


@pytest.mark.parametrize("form", [np.zeros(VOCAB // 32, np.uint32), np.full(VOCAB // 32, 7, np.uint32)])
def test_a_mask_has_a_bit_for_every_token(started: lily.Session, form: Any) -> None:
    """Of a vocabulary that is no multiple of 32, too."""
    assert VOCAB % 32 != 0
    with pytest.raises(InvalidArgumentError, match=rf"shape \[{VOCAB // 32 + 1}\] or more"):
        next(started.generation(1, mask=lambda: form))
    last = np.zeros(VOCAB // 32 + 1, np.uint32)
    last[-1] = 1 << (VOCAB - 1) % 32
    assert next(started.generation(1, mask=lambda: last, stop_tokens=())).id == VOCAB - 1


def test_no_logits_yet(session: lily.Session) -> None:
    with pytest.raises(InvalidArgumentError, match="no logits"):
        next(session.generate(max_tokens=1, stop_tokens=()))
    assert list(session.generate(max_tokens=0)) == []


@pytest.mark.parametrize("max_tokens", [-1, 1.5, "3", True])
def test_wrong_max_tokens(started: lily.Session, max_tokens: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="max_tokens"):
        started.generate(max_tokens=max_tokens)


@pytest.mark.parametrize("stop_tokens", [5, "ab", [1.5], [None]])
def test_wrong_stop_tokens(started: lily.Session, stop_tokens: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="stop_tokens"):
        started.generate(stop_tokens=stop_tokens)


def test_a_full_context_ends_the_generation(checkpoint: Path) -> None:
    with lily.Model.load(checkpoint, threads=THREADS, max_context=30) as model, model.session() as session:
        session.prefill(PROMPT)
        made = list(session.generate(sampling=GREEDY, stop_tokens=()))
        assert len(made) == 5 and session.position == 30
        assert made == greedy(model, PROMPT, 100)
        assert list(session.generate(sampling=GREEDY, stop_tokens=())) == []
        for call in (lambda: session.decode(1), lambda: session.prefill([1])):
            with pytest.raises(ContextOverflowError, match="holds 30 tokens"):
                call()
        assert session.tokens == PROMPT + made


def test_same_seed_same_tokens(model: lily.Model, checkpoint: Path) -> None:
    sampling = Sampling(temperature=1.5, top_p=0.95)
    expected = sampled(model, PROMPT, 30, sampling, seed=42)
    assert expected == sampled(model, PROMPT, 30, sampling, seed=42)
    assert expected != sampled(model, PROMPT, 30, sampling, seed=43)
    assert expected == sampled(model, PROMPT, 30, Sampling(temperature=1.5, top_p=0.95, seed=42), seed=5)
    with lily.Model.load(checkpoint, threads=1, prefill_chunk=3) as other, other.session(seed=42) as session:
        list(session.score(random_ids(30)))
        session.prefill(random_ids(70))
        list(session.generate(max_tokens=9, stop_tokens=()))
        session.reset()
        for token in PROMPT:
            session.decode(token)
        found: list[int] = []
        while len(found) < 30:
            found += session.generate(max_tokens=4, sampling=sampling, stop_tokens=())
        assert found[:30] == expected


def test_seeds(model: lily.Model) -> None:
    for seed in (0, (1 << 64) - 1, np.int64(5)):
        model.session(seed=seed).close()
    wrong: list[Any] = [-1, 1 << 64, 1.5, "1", True]
    for seed in wrong:
        with pytest.raises(InvalidArgumentError, match="seed"):
            model.session(seed=seed)


def test_without_a_seed_sessions_differ(model: lily.Model) -> None:
    results = set()
    for _ in range(4):
        with model.session() as session:
            session.prefill(PROMPT)
            results.add(tuple(session.generate(max_tokens=8, sampling=WILD, stop_tokens=())))
    assert len(results) == 4


def test_rows_beyond_the_tokenizer_are_never_sampled(tmp_path: Path) -> None:
    tokenizer = lily_tiny.tokenizer().get_vocab_size()
    write_checkpoint(tmp_path, {**CONFIG, "vocab_size": tokenizer + 400}, bits=8, group_size=32)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(lily_tiny.CHECKPOINT / name, tmp_path)
    with lily.Model.load(tmp_path, threads=1) as model, model.session(seed=1) as session:
        assert model.sampled_vocab_size == tokenizer
        best = np.array([session.decode(token).argmax() for token in range(100)])
        assert (best >= tokenizer).any()
        for token in range(100):
            session.reset()
            logits = session.prefill(list(range(token + 1)))
            assert next(session.generate(max_tokens=1, sampling=GREEDY)) == logits[:tokenizer].argmax()
            made = list(session.generate(max_tokens=4, sampling=Sampling(temperature=50.0), stop_tokens=()))
            assert max(made) < tokenizer


def test_thin_forms(model: lily.Model) -> None:
    with model.prefill(PROMPT) as session:
        assert np.array_equal(session.logits, fresh_logits(model, PROMPT))
        assert np.array_equal(model.decode(session, 3), fresh_logits(model, [*PROMPT, 3]))


def test_generating_after_close(model: lily.Model) -> None:
    session = model.prefill(PROMPT)
    generation = session.generate(max_tokens=3, stop_tokens=())
    next(generation)
    session.close()
    with pytest.raises(ClosedError):
        next(generation)
