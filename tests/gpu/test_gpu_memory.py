"""The bytes that sequences on a GPU engine say they hold are those that the device has allocated for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import lily
from deferred_device import model_on
from engine_helpers import random_ids
from lily import _core

PROMPT = random_ids(600, seed=71)  # the caches grow at 256 and at 512 positions
GREEDY = lily.Sampling.greedy()


@dataclass
class Counted:
    """A model on a device of its own."""

    model: lily.Model
    device: Any
    without_sessions: int

    @property
    def allocated(self) -> int:
        """Bytes that the device has allocated for sequences."""
        return int(self.device.allocated_bytes) - self.without_sessions


@pytest.fixture
def counted(checkpoint: Path) -> Iterator[Counted]:
    device = _core.device.SimDevice()
    with model_on(device, checkpoint) as model:
        with model.session() as first:  # memory that passes of any sequence use
            first.prefill(PROMPT)
            list(first.generate(3, sampling=GREEDY, stop_tokens=()))
        yield Counted(model, device, device.allocated_bytes)


def test_what_a_session_holds(counted: Counted) -> None:
    with counted.model.session() as session:
        assert session.state_bytes == counted.allocated == 0
        sizes = []
        for begin, end in ((0, 1), (1, 256), (256, 257), (257, 600)):
            session.prefill(PROMPT[begin:end])
            assert session.state_bytes == counted.allocated
            sizes.append(counted.allocated)
        config = counted.model.config
        position = 2 * config.num_full_attention_layers * config.num_key_value_heads * config.head_dim * 2
        assert [size - sizes[0] for size in sizes] == [0, 0, 256 * position, 768 * position]
        list(session.generate(5, sampling=GREEDY, stop_tokens=()))
        assert session.state_bytes == counted.allocated == sizes[-1]
        session.reset()
        assert session.state_bytes == counted.allocated
    assert counted.allocated == 0


def test_what_a_snapshot_holds(counted: Counted) -> None:
    """Its tokens and logits are in the host's memory; all else is the device's, and shared with no session any more."""
    vocab_size = counted.model.config.vocab_size
    with counted.model.session() as session:
        session.prefill(PROMPT[:300])
        snapshot, ledger = session.snapshot(), _core.MemoryLedger()
        for _ in range(2):
            ledger.add(snapshot.core)
    on_host = 4 * (300 + vocab_size)
    assert counted.allocated > 0
    assert ledger.bytes == snapshot.bytes == snapshot.own_bytes == counted.allocated + on_host
    snapshot.close()
    assert counted.allocated == 0


def test_what_a_fork_adds(counted: Counted) -> None:
    """It shares all but its slots and logits until one of both computes; then that one copies what it writes."""
    with counted.model.session() as session:
        session.prefill(PROMPT[:40])
        with session.fork() as fork:
            fork.decode(1)
            shared = session.state_bytes + fork.state_bytes - counted.allocated
            assert shared > 0
            session.decode(2)  # from the position that the fork has gone on from
            apart = session.state_bytes + fork.state_bytes - counted.allocated
            assert 0 <= apart < shared
        assert session.state_bytes == counted.allocated


@pytest.mark.parametrize(("most", "rooms"), [(300, (256, 300)), (600, (256, 600)), (100, (100, 100))])
def test_no_cache_is_larger_than_the_context(checkpoint: Path, most: int, rooms: tuple[int, int]) -> None:
    device = _core.device.SimDevice()
    with model_on(device, checkpoint, max_context=most) as model:
        config = model.config
        position = 2 * config.num_full_attention_layers * config.num_key_value_heads * config.head_dim * 2
        sizes = []
        for count in (1, most):
            with model.session() as session:
                session.prefill(PROMPT[:count])
                sizes.append(session.state_bytes - rooms[len(sizes)] * position)
        assert sizes[0] == sizes[1] > 0  # what does not grow with the context
