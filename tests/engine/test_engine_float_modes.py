"""What a program or a library does to the processor's floating-point mode changes no result.

Libraries built with -ffast-math switch the flushing of subnormal numbers on when they are imported, and new threads
inherit the mode of the thread that makes them.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import platform
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lily
from engine_helpers import THREADS, random_ids

UPWARD = {"x86_64": 0x800, "aarch64": 0x400000, "arm64": 0x400000}.get(platform.machine())  # <fenv.h>
LIBRARY = ctypes.CDLL(ctypes.util.find_library("m")) if ctypes.util.find_library("m") else None
IDS = random_ids(90, 5)

pytestmark = pytest.mark.skipif(LIBRARY is None or UPWARD is None, reason="the C library's constants are not known")


def round_upward() -> None:
    assert LIBRARY is not None and LIBRARY.fesetround(UPWARD) == 0


@pytest.fixture
def elsewhere() -> Iterator[Callable[..., Any]]:
    """Runs a function in a thread that rounds upward."""
    with ThreadPoolExecutor(1, initializer=round_upward) as thread:
        yield lambda function: thread.submit(function).result(timeout=60)


def results(model: lily.Model) -> list[bytes]:
    with model.session(seed=1) as session:
        found = [np.array(session.prefill(IDS[:80])), *(np.array(session.decode(token)) for token in IDS[80:])]
        made = list(session.generate(max_tokens=9, sampling=lily.Sampling(seed=3), stop_tokens=()))
        scores = session.score(IDS)
        return [array.tobytes() for array in (*found, np.array(made), np.array(scores))]


def test_in_a_thread_that_rounds_otherwise(model: lily.Model, elsewhere: Callable[..., Any]) -> None:
    assert LIBRARY is not None
    assert elsewhere(lambda: results(model)) == results(model)
    assert elsewhere(LIBRARY.fegetround) == UPWARD  # the caller keeps its mode
    one, little = np.float32(1), np.float32(1e-9)
    assert elsewhere(lambda: float(one + little)) > 1 == float(one + little)


def test_loaded_by_a_thread_that_rounds_otherwise(
    model: lily.Model, checkpoint: Path, elsewhere: Callable[..., Any]
) -> None:
    with elsewhere(lambda: lily.Model.load(checkpoint, threads=THREADS)) as other:
        assert results(other) == results(model)
