"""The host's side of the cuda device without a GPU, on a driver made for these tests (fake_cuda.c): data on the way to
and from passes, graphs, failures of every call, the cache of compiled kernels, and what users are told."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lily import _core

HERE = Path(__file__).resolve().parent
RUNS = HERE / "fake_gpu_runs.py"


def compiled(folder: Path, *options: str) -> Path:
    """fake_cuda.c as libcuda.so.1 in the folder."""
    if not hasattr(_core.device, "CudaDevice"):
        pytest.skip("this build has no cuda device")
    library = folder / "libcuda.so.1"
    command = [os.environ.get("CC", "gcc"), "-shared", "-fPIC", "-O1", *options, "-o", str(library)]
    try:
        done = subprocess.run([*command, "-x", "c", str(HERE / "fake_cuda.c")], capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("no C compiler")
    assert done.returncode == 0, done.stderr
    return library


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("driver"), "-Wall", "-Wextra", "-Werror")


def run(name: str, driver: Path, folder: Path, **environment: str) -> str:
    """What the run printed."""
    python_path = os.pathsep.join(path for path in sys.path if path)
    variables = {"LD_LIBRARY_PATH": str(driver.parent), "LILY_NVRTC": str(driver), "PYTHONPATH": python_path}
    done = subprocess.run(
        [sys.executable, str(RUNS), name, str(driver), str(folder)],
        env={**os.environ, **variables, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize(
    "name",
    [
        "each_call_fails",
        "a_failed_pass_can_be_repeated",
        "a_lost_gpu_stays_lost",
        "a_damaged_cache_is_not_used",
        "two_models_share_the_gpu",
        "importing_and_the_cpu_leave_cuda_alone",
        "a_model_names_what_failed",
        "copying_is_told",
    ],
)
def test_run(name: str, driver: Path, tmp_path: Path) -> None:
    run(name, driver, tmp_path)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"FAKE_CUDA_INIT": "100"}, "the NVIDIA driver found no GPU to use: CUDA_ERROR"),
        ({"FAKE_CUDA_INIT": "3"}, 'CUDA was in use before this process was forked.*"spawn"'),
        ({"FAKE_CUDA_GPUS": "0"}, "there is no NVIDIA GPU that this process may use"),
        ({"FAKE_CUDA_MAJOR": "7"}, "the Fake GPU is older than the Ampere generation"),
        ({"LILY_NVRTC": "/no/such/library.so"}, r"\$LILY_NVRTC cannot be loaded: .*/no/such/library.so"),
        ({"LILY_NVRTC": "libc.so.6"}, "NVRTC lacks nvrtcVersion"),
    ],
)
def test_users_are_told_what_is_missing(
    environment: dict[str, str], message: str, driver: Path, tmp_path: Path
) -> None:
    told = run("opening", driver, tmp_path, **environment)
    assert re.search(message, told), told


def test_an_old_driver_is_refused(tmp_path: Path) -> None:
    old = compiled(tmp_path, "-DcuGraphAddKernelNode_v2=cuGraphAddKernelNode")
    told = run("opening", old, tmp_path)
    assert "the NVIDIA driver lacks cuGraphAddKernelNode_v2; install one for CUDA 12.0 or later" in told
