"""Whole passes on the checking device: races, ranges, uninitialised reads, and stages in any order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import lily
from deferred_device import model_on
from device_runner import sim
from engine_helpers import random_ids
from gpu_models import GPU_CONFIG
from synthetic import write_checkpoint

PROMPT = random_ids(19, seed=31)


def run(model: lily.Model) -> list[np.ndarray]:
    with model.session() as session:
        results = [np.array(session.prefill(PROMPT))]
        tokens = list(session.generate(4, sampling=lily.Sampling(seed=1), stop_tokens=()))
        results += [np.array(session.decode(tokens[0])), np.array(tokens)]
    return results


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ({}, {"group_size": 32, "odd_offsets": True}),
        ({}, {"group_size": 32, "odd_offsets": True, "layout": "per_expert", "scatter": True, "shards": 2}),
        # Experts of 34 by 98 bfloat16 are no whole number of 16 bytes: in a stack, every other one is not aligned.
        ({"hidden_size": 98, "moe_intermediate_size": 34}, {"bits": None, "odd_offsets": False}),
        ({}, {"bits": 8, "group_size": 32, "scale_dtype": "F16", "odd_offsets": True}),
    ],
)
def test_no_access_of_weights_is_misaligned(
    tmp_path: Path, changes: dict[str, int], options: dict[str, object]
) -> None:
    """Wherever they lie in their files: what is not aligned for the kernels' loads is copied."""
    directory = write_checkpoint(tmp_path, {**GPU_CONFIG, **changes}, seed=4, **options)
    with lily.Model.load(directory, backend="sim") as model:
        expected = run(model)
    with model_on(sim(checked=True), directory) as model:
        for got, want in zip(run(model), expected, strict=True):
            assert np.array_equal(got, want)


@pytest.mark.parametrize("off", [(), ("P1", "P2", "P3", "P4", "D3", "D4", "D5", "D6")], ids=["on", "off"])
def test_no_check_fires_and_no_order_changes_a_bit(checkpoint: Path, off: tuple[str, ...]) -> None:
    options = lily.GpuOptions().without(*off)
    with lily.Model.load(checkpoint, backend="sim", options=options) as model:
        expected = run(model)
    devices = [
        sim(checked=True, order="random", seed=1, shuffle_stage=True, poison_allocations=True),
        sim(order="reverse", seed=2, shuffle_stage=True, poison_allocations=True),
    ]
    for device in devices:
        with model_on(device, checkpoint, options=options) as model:
            for got, want in zip(run(model), expected, strict=True):
                assert np.array_equal(got, want)
