"""Ranges and iterators that claim more than memory holds: refused by length, or after a bounded number of items."""

from __future__ import annotations

import itertools
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import lily
from lily.errors import ContextOverflowError, InvalidArgumentError, LilyError
from lily_tiny import CHECKPOINT

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="asks /proc what the process holds")

CONTEXT = 512
HUGE = [range(300_000_000), range(10**12), range(10**30)]
ENDLESS: list[Callable[[], Any]] = [lambda: range(300_000_000), lambda: range(10**12), itertools.count]


@pytest.fixture(scope="module")
def model() -> Iterator[lily.Model]:
    with lily.Model.load(CHECKPOINT, threads=1, max_context=CONTEXT) as loaded:
        loaded.chat()  # tokenizer, template and grammars are there before memory is scarce
        yield loaded


@pytest.fixture
def scarce_memory() -> Iterator[None]:
    """A GiB more than is used now: what copies hundreds of millions of items fails."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (1 << 30), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("ids", [range(CONTEXT + 1), *HUGE])
def test_more_ids_than_the_context_are_refused_by_their_number(model, scarce_memory, ids):
    with model.session() as session:
        for call in (session.prefill, session.score, model.prefill, model.cached_session):
            with pytest.raises(ContextOverflowError, match=rf"has \d+ tokens and the maximum context is {CONTEXT}"):
                call(ids)
        assert session.position == 0
        session.prefill(range(CONTEXT))


@pytest.mark.parametrize("ids", HUGE)
def test_nested_ids_are_not_copied(model, scarce_memory, ids):
    with model.session() as session:
        for nested in ([ids], [[1], ids], ([ids],), [[[1]], [ids]]):
            for call in (session.prefill, session.score, model.cached_session, model.cache.explain):
                with pytest.raises(InvalidArgumentError, match="flat sequence"):
                    call(nested)


@pytest.mark.parametrize("ids", HUGE)
def test_no_more_is_explained_than_any_context_holds(model, scarce_memory, ids):
    with pytest.raises(InvalidArgumentError, match="no context has more"):
        model.cache.explain(ids)


@pytest.mark.parametrize("items", ENDLESS)
def test_lists_are_bounded(model, scarce_memory, items):
    with model.session() as session:
        session.prefill([1, 2, 3])
        for name, call in {
            "stop_tokens": lambda: session.generation(1, stop_tokens=items()),
            "snapshot_at": lambda: model.cached_session([1, 2, 3], snapshot_at=items()),
            "messages": lambda: model.render_chat(items()),
            "tools": lambda: model.chat(tools=items()),
            "stop": lambda: model.chat(stop=items()),
        }.items():
            with pytest.raises(LilyError, match=rf"^{name} must be .* of at most 1,048,576 items"):
                call()
        with pytest.raises(LilyError, match="is not a token"):
            model.tokenizer.decode(items())


@pytest.mark.parametrize("items", ENDLESS)
def test_what_is_forced_is_taken_as_far_as_there_is_room(model, scarce_memory, items):
    with model.session() as session:
        session.prefill([1, 2, 3])
        generation = session.generation(2, stop_tokens=())
        assert generation.force(items()) == [0, 1]
        assert generation.force(items()) == []
        assert session.tokens == [1, 2, 3, 0, 1]


def test_no_memory_for_ids_is_an_error_of_lilys_own(model):
    class Ids(list[int]):
        def __array__(self, *_: object, **__: object) -> object:
            raise MemoryError

    with model.session() as session, pytest.raises(InvalidArgumentError, match="not enough memory"):
        session.prefill(Ids([1, 2]))
