"""Whole passes on the checking device: races, ranges, uninitialised reads, and stages in any order."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from deferred_device import model_on
from engine_helpers import random_ids

import lily

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "metal"))

from device_runner import sim

PROMPT = random_ids(19, seed=31)


def run(model: lily.Model) -> list[np.ndarray]:
    with model.session() as session:
        results = [np.array(session.prefill(PROMPT))]
        tokens = list(session.generate(4, sampling=lily.Sampling(seed=1), stop_tokens=()))
        results += [np.array(session.decode(tokens[0])), np.array(tokens)]
    return results


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
