"""rms_norm_rows against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from device_runner import from_bfloat16, pack, run, sim
from lily_args import ARGS

EPS = 1e-6


def make_input(rows: int, size: int, scale: float = 3.0) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    rng = np.random.default_rng([rows, size])
    x = rng.normal(0.2, 1.0, (rows, size)) * scale * np.exp(rng.normal(0.0, 2.0, (rows, 1)))
    return x.astype(np.float32), rng.normal(1.0, 0.4, size).astype(np.float32)


def normalize(device: Any, x: NDArray[np.float32], weight: NDArray[np.float32]) -> NDArray[np.uint16]:
    out = np.zeros(x.shape, np.uint16)
    run(
        device,
        "rms_norm_rows",
        {0: x, 1: weight, 2: out},
        args=pack(*x.shape, EPS),
        threadgroups=(len(x),),
        threads=ARGS.kRowThreads,
    )
    return out


def check(out: NDArray[np.uint16], x: NDArray[np.float32], weight: NDArray[np.float32]) -> None:
    """Rounding to the 8 bits of bfloat16 (2^-8), and at most 64 roundings of float32 (2^-24)."""
    wide = x.astype(np.float64)
    expected = wide / np.sqrt(np.mean(wide**2, axis=1, keepdims=True) + EPS) * weight
    assert np.all(np.abs(from_bfloat16(out) - expected) <= (2.0**-8 + 2.0**-18) * np.abs(expected) + 1e-37)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("size", [1, 3, 64, 127, 128, 130, 516, 1023, 2048, 2560])
def test_sizes(rows: int, size: int) -> None:
    x, weight = make_input(rows, size)
    check(normalize(sim(), x, weight), x, weight)


@pytest.mark.parametrize("scale", [0.0, 1e-6, 1e-3, 1e5])
@pytest.mark.parametrize("size", [259, 260])
def test_rows_of_any_magnitude(size: int, scale: float) -> None:
    """The norm's eps is nothing beside large rows, much beside small ones, and all there is beside zeros."""
    x, weight = make_input(2, size, scale)
    check(normalize(sim(), x, weight), x, weight)


@pytest.mark.parametrize("size", [515, 516])
def test_order_of_threads_does_not_matter(size: int) -> None:
    x, weight = make_input(3, size)
    forward = normalize(sim(order="forward"), x, weight)
    assert np.array_equal(forward, normalize(sim(order="reverse"), x, weight))
    assert np.array_equal(forward, normalize(sim(order="random", seed=5), x, weight))


@pytest.mark.parametrize("size", [130, 515, 516])
def test_stays_inside_its_buffers(size: int) -> None:
    x, weight = make_input(3, size)
    check(normalize(sim(checked=True), x, weight), x, weight)
