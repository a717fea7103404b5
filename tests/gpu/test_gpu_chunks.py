"""Chunks of a prompt: how long they get where a pass may take only so long, and what the switches do to their waits."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import lily
from deferred_device import deferred_device, model_on
from engine_helpers import random_ids

PROMPT = random_ids(400, seed=41)


def chunks_of(model: lily.Model) -> list[int]:
    """Rows of each chunk of the prompt."""
    ends: list[int] = []
    with model.session() as session:
        session.prefill(PROMPT, progress=lambda done, total: ends.append(done))
    return np.diff([0, *ends]).tolist()


def test_chunks_shrink_until_a_pass_fits_its_time(checkpoint: Path) -> None:
    # Every pass of this device says that it took a millisecond, whatever its rows.
    with model_on(
        deferred_device(), checkpoint, options=lily.GpuOptions(pass_seconds=0.0005), prefill_chunk=256
    ) as model:
        # Half the time allows half the rows, in steps of 64 and never fewer.
        assert chunks_of(model) == [256, 128, 16]
        assert chunks_of(model) == [64] * 6 + [16]


def test_chunks_grow_again_at_most_twofold(checkpoint: Path) -> None:
    with model_on(
        deferred_device(), checkpoint, options=lily.GpuOptions(pass_seconds=0.0005), prefill_chunk=256
    ) as model:
        chunks_of(model)
        native = model.core
        lily._core.gpu.set_options(native, lily.GpuOptions().to_core())  # switches only: the limit stays
        assert chunks_of(model)[0] == 64
    with model_on(deferred_device(), checkpoint, options=lily.GpuOptions(pass_seconds=0.1), prefill_chunk=256) as model:
        assert chunks_of(model) == [256, 144]


def test_chunks_are_multiples_of_64(checkpoint: Path) -> None:
    """What fits a pass is rounded down: 0.7, 0.45 and 0.3 of 256 rows are 179, 115 and 77."""
    for share, second in ((0.7, 128), (0.45, 64), (0.3, 64)):
        options = lily.GpuOptions(pass_seconds=share / 1000)
        with model_on(deferred_device(), checkpoint, options=options, prefill_chunk=256) as model:
            assert chunks_of(model)[:2] == [256, second]


def test_results_do_not_depend_on_the_limit(checkpoint: Path, model: lily.Model) -> None:
    options = lily.GpuOptions(pass_seconds=0.0005)
    with model_on(deferred_device(), checkpoint, options=options, prefill_chunk=256) as late, late.session() as session:
        got = np.array(session.prefill(PROMPT))
    with (
        lily.Model.load(model.checkpoint.directory, backend="sim", prefill_chunk=64) as other,
        other.session() as session,
    ):
        want = np.array(session.prefill(PROMPT))
    assert np.abs(got - want).max() < 2.0**-6 * np.abs(want).max()


def test_a_chunk_is_one_submission_and_one_wait(checkpoint: Path) -> None:
    device = deferred_device()
    with model_on(device, checkpoint, prefill_chunk=100) as model, model.session() as session:
        session.prefill(PROMPT[:200])  # the cache has room for 256 positions: nothing moves
    assert device.events == ["submit 0", "wait 0", "submit 1", "wait 1"]


def test_routing_on_the_host_waits_once_a_layer(checkpoint: Path) -> None:
    device = deferred_device()
    options = lily.GpuOptions().without("P2")
    with model_on(device, checkpoint, options=options, prefill_chunk=400) as model, model.session() as session:
        session.prefill(PROMPT)
    waits = [event for event in device.events if event.startswith("wait")]
    assert len(waits) == 4 + 1  # each layer's experts, and the rest
