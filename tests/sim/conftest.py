"""Fixtures of the sim device's own tests: libraries of the kernels in tests/sim/kernels, built once."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lily import _core

HERE = Path(__file__).resolve().parent

MakeDevice = Callable[..., Any]


@pytest.fixture(scope="session")
def make_device() -> MakeDevice:
    """``make_device(checked=True, order="random")``: a sim device with the test kernels.

    With ``LILY_TEST_DEVICE=cuda`` the GPU, whatever the options: for test_sim_vocabulary.py and test_sim_tile.py.
    """
    if os.environ.get("LILY_TEST_DEVICE") == "cuda":
        from device_runner import build_cuda, cuda

        library = str(build_cuda(sorted((HERE / "kernels").glob("*.metal"))))
        return lambda **options: cuda(library)
    if not hasattr(_core.device, "SimDevice"):
        pytest.skip("this build has no sim device")
    if shutil.which("g++") is None:
        pytest.skip("the test kernels are compiled with g++")
    from device_runner import build, sim

    sources = sorted((HERE / "kernels").glob("*.metal"))

    def make(checked: bool = False, **options: Any) -> Any:
        return sim(checked=checked, library=str(build(sources, checked)), **options)

    return make
