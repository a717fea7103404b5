"""The same tokens give the same logits, bit for bit: whatever the chunks, calls, threads and FMA instruction set."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import lily
from engine_helpers import CONTEXT, THREADS, VOCAB, fresh_logits, random_ids
from lily import _core

LONG = 300  # crosses a block of the KV cache
ISAS = _core.available_isas()
PORTABLE_ERROR = 1e-3


@pytest.fixture(scope="module")
def ids() -> list[int]:
    return random_ids(LONG, 1)


@pytest.fixture(scope="module")
def expected(checkpoint: Path, ids: list[int]) -> NDArray[np.float32]:
    """Logits after every prefix, token by token on one thread."""
    with lily.Model.load(checkpoint, threads=1) as model, model.session() as session:
        return np.stack([np.array(session.decode(token)) for token in ids])


@pytest.fixture
def load(checkpoint: Path) -> Iterator[Callable[..., lily.Model]]:
    opened: list[lily.Model] = []

    def load(**options: object) -> lily.Model:
        opened.append(lily.Model.load(checkpoint, **{"threads": THREADS, **options}))  # type: ignore[arg-type]
        return opened[-1]

    yield load
    for model in opened:
        model.close()


@pytest.mark.parametrize("chunk", [1, 2, 7, 64, 256, LONG, CONTEXT, 1 << 40])
def test_chunk_sizes(chunk: int, load, ids, expected) -> None:
    assert np.array_equal(fresh_logits(load(prefill_chunk=chunk, threads=1), ids), expected[-1])


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_threads(threads: int, load, ids, expected) -> None:
    model = load(threads=threads)
    assert model.threads == threads
    with model.session() as session:
        assert np.array_equal(session.prefill(ids[:-3]), expected[-4])
        for place in (-3, -2, -1):
            assert np.array_equal(session.decode(ids[place]), expected[place])


@pytest.mark.parametrize("isa", ISAS)
def test_instruction_sets(isa: str, load, ids, expected) -> None:
    model = load(cpu_isa=isa)
    assert model.cpu_isa == isa
    with model.session() as session:
        found = [np.array(session.prefill(ids[:-3])), *(np.array(session.decode(token)) for token in ids[-3:])]
    for logits, wanted in zip(found, expected[-4:], strict=True):
        if isa != "portable" and ISAS[0] != "portable":
            assert np.array_equal(logits, wanted)
        error = np.abs(logits - wanted).max() / np.abs(wanted).max()
        assert error <= PORTABLE_ERROR


@pytest.mark.parametrize("isa", ISAS)
def test_an_instruction_set_agrees_with_itself(isa: str, load, ids) -> None:
    in_one, in_chunks = load(cpu_isa=isa), load(cpu_isa=isa, prefill_chunk=13, threads=1)
    assert np.array_equal(fresh_logits(in_one, ids), fresh_logits(in_chunks, ids))


@pytest.mark.parametrize("parts", [(1, 299), (299, 1), (7, 100, 150, 43), (255, 2, 43)])
def test_prompt_in_parts(parts: tuple[int, ...], model, ids, expected) -> None:
    assert sum(parts) == LONG
    with model.session() as session:
        begin = 0
        for part in parts:
            logits = session.prefill(ids[begin : begin + part])
            begin += part
            assert np.array_equal(logits, expected[begin - 1])
        assert session.tokens == ids


def test_every_length(model, ids, expected) -> None:
    with model.session() as session:
        for length in range(1, 131):
            session.reset()
            logits = session.prefill(ids[:length])
            assert np.isfinite(logits).all()
            assert np.array_equal(logits, expected[length - 1]), length


def test_all_tokens_of_the_vocabulary(model) -> None:
    logits = [fresh_logits(model, [token]) for token in range(VOCAB)]
    assert len({row.tobytes() for row in logits}) == VOCAB


def test_reset_leaves_nothing_behind(session, ids, expected) -> None:
    for count in (40, 300, 5):
        session.prefill(random_ids(count, count))
        session.reset()
        assert session.position == 0 and session.tokens == [] and session.logits is None
        assert np.array_equal(session.prefill(ids[:33]), expected[32])


def test_cached_types_differ_little(load, ids, expected) -> None:
    logits = fresh_logits(load(kv_cache_type="bfloat16"), ids)
    error = np.abs(logits - expected[-1]).max() / np.abs(expected[-1]).max()
    assert 0 < error < 0.05


@pytest.mark.parametrize("threads", [2, 3, 5])
def test_heads_that_share_keys_are_divided_between_threads(threads: int) -> None:
    """lily-tiny has one key/value head for eight query heads: with two threads they are two tasks, of four heads."""
    ids = random_ids(90, 7)
    with lily.Model.load("lily-tiny", threads=1) as one, one.session() as session:
        wanted = [np.array(session.prefill(ids[:70])), *(np.array(session.decode(token)) for token in ids[70:])]
    with lily.Model.load("lily-tiny", threads=threads) as several, several.session() as session:
        assert np.array_equal(session.prefill(ids[:70]), wanted[0])
        for token, logits in zip(ids[70:], wanted[1:], strict=True):
            assert np.array_equal(session.decode(token), logits)
