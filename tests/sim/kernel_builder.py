"""Builds a library of kernels for the sim device from .metal files, as the product's build does."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "src" / "lily_core"
SIM = CORE / "device" / "sim"
_ONLY_FAST = {"unchecked"}
_ONLY_CHECKED = {"checker", "shadow", "access_hooks", "behaviour_hooks", "line_table"}
_KERNEL_FLAGS = ["-O2", "-g1", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-Wno-attributes"]
_KERNEL_FLAGS += ["-fstack-clash-protection"]
_CHECKED_FLAGS = [
    "-fsanitize=thread", "-fsanitize=alignment,bounds,shift,integer-divide-by-zero", "-fno-sanitize-recover=all",
    "-fno-optimize-sibling-calls", "--param", "tsan-instrument-func-entry-exit=0",
]  # fmt: skip


def compiler() -> str | None:
    """The C++ compiler to build with, if there is one."""
    return os.environ.get("CXX") or shutil.which("g++")


def msl(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs the translator's command line."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tools")}
    command = [sys.executable, "-m", "msl", *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def build_library(sources: Sequence[Path], folder: Path, checked: bool) -> Path:
    """Translates, compiles and links ``sources``; returns the library."""
    cxx = compiler()
    assert cxx is not None
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / ("kernels_checked.so" if checked else "kernels.so")
    common = [cxx, "-std=c++20", "-fPIC", "-fvisibility=hidden", "-ftls-model=initial-exec"]
    common += [f"-I{path}" for path in (CORE, SIM, SIM / "msl")]
    if platform.machine() in ("x86_64", "AMD64"):
        common.append("-march=x86-64-v3")
    skipped = _ONLY_FAST if checked else _ONLY_CHECKED
    runtime = [path for path in sorted((SIM / "runtime").glob("*.cpp")) if path.stem not in skipped]
    registry = folder / "registry.cpp"
    _check(msl("registry", *[path.stem for path in sources], "-o", registry))
    jobs = [(path, [*common, "-O2"]) for path in [*runtime, registry]]
    flags = [*common, *_KERNEL_FLAGS, *(_CHECKED_FLAGS if checked else [])]
    define = "LILY_CHECKED=1" if checked else "LILY_DEVICE_TILE=1"
    for source in sources:
        translated = folder / f"kernel_{source.stem}.cpp"
        _check(msl("translate", source, "-o", translated, "--compiler", cxx, "-I", ROOT / "metal", "-D", define))
        jobs.append((translated, flags))
    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(lambda job: _compile(*job, folder), jobs))
    _check(subprocess.run([cxx, "-shared", "-o", library, *objects, "-lpthread"], capture_output=True, text=True))
    if checked:
        _check(msl("lines", library, "-o", library.with_suffix(".lines")))
    return library


def _compile(source: Path, command: list[str], folder: Path) -> Path:
    output = folder / f"{source.stem}.o"
    _check(subprocess.run([*command, "-c", source, "-o", output], capture_output=True, text=True))
    return output


def _check(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stderr
