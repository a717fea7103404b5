"""SwiGLU of rows, and words filled and copied, at counts that fill neither a thread nor a threadgroup."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from quantized import random_bfloat16

from device_runner import from_bfloat16, pack, run, sim
from lily_args import ARGS

THREADS = ARGS.kElementThreads
COUNTS = [1, 3, 4, 1021, 1024, 2051]
DEVICES: list[dict[str, Any]] = [{}, {"order": "reverse"}, {"order": "random", "seed": 1}, {"checked": True}]


def launch(device: Any, kernel: str, buffers: dict[int, NDArray[Any]], count: int) -> None:
    run(device, kernel, buffers, args=pack(count), threadgroups=(-(-count // (4 * THREADS)),), threads=THREADS)


@pytest.mark.parametrize("count", COUNTS)
def test_silu_multiply_rows(count: int) -> None:
    rng = np.random.default_rng(count)
    gate, up = random_bfloat16(rng, (count,), 4.0), random_bfloat16(rng, (count,), 2.0)
    gate[: count // 3] = random_bfloat16(rng, (count // 3,), 60.0)  # sigmoid from 0 to 1
    outs = []
    for options in DEVICES:
        out = np.full(count + 5, 0x1234, np.uint16)
        launch(sim(**options), "silu_multiply_rows", {0: gate, 1: up, 2: out}, count)
        assert (out[count:] == 0x1234).all()
        outs.append(out)
    for out in outs[1:]:
        np.testing.assert_array_equal(out, outs[0])
    g, u = from_bfloat16(gate).astype(np.float64), from_bfloat16(up).astype(np.float64)
    expected = g / (1.0 + np.exp(-g)) * u
    # bf16 rounds by at most 2^-8 of the value; exp, the sum, the division and two products are within 8 float32 ulps.
    # Where sigmoid underflows in float32 (gates below -87), both are 0 but for 1e-35.
    error = (2.0**-8 + 8 * 2.0**-23) * np.abs(expected) + 1e-35
    assert (np.abs(from_bfloat16(outs[0][:count]) - expected) <= error).all()


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("options", DEVICES)
def test_fill_zero(count: int, options: dict[str, Any]) -> None:
    words = np.random.default_rng(count).integers(1, 2**32, count + 6, dtype=np.uint32)
    before = words.copy()
    launch(sim(**options), "fill_zero", {0: words}, count)
    assert not words[:count].any()
    np.testing.assert_array_equal(words[count:], before[count:])


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("options", DEVICES)
def test_copy_words(count: int, options: dict[str, Any]) -> None:
    rng = np.random.default_rng(count)
    source = rng.integers(0, 2**32, count, dtype=np.uint32)
    target = rng.integers(0, 2**32, count + 3, dtype=np.uint32)
    kept = target[count:].copy()
    launch(sim(**options), "copy_words", {0: source, 1: target}, count)
    np.testing.assert_array_equal(target[:count], source)
    np.testing.assert_array_equal(target[count:], kept)
