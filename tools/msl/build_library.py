"""Builds a library of kernels for the sim device from .metal files alone, as the product's build does for all."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .line_table import line_table
from .preprocess import preprocess
from .sim_backend import SimBackend, registry
from .tokens import SubsetError
from .translate import translate

ROOT = Path(__file__).resolve().parents[2]
_CORE = ROOT / "src" / "lily_core"
_SIM = _CORE / "device" / "sim"
_ONLY_FAST = {"unchecked"}
_ONLY_CHECKED = {"checker", "shadow", "access_hooks", "behaviour_hooks", "line_table"}
_KERNEL_FLAGS = [
    "-O2", "-g1", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fstack-clash-protection",
    "-Wno-attributes",
]  # fmt: skip
_CHECKED_FLAGS = [
    "-fsanitize=thread", "-fsanitize=alignment,bounds,shift,integer-divide-by-zero", "-fno-sanitize-recover=all",
    "-fno-optimize-sibling-calls",
]  # fmt: skip
_NO_ENTRY_HOOKS = {False: ["--param", "tsan-instrument-func-entry-exit=0"],
                   True: ["-mllvm", "-tsan-instrument-func-entry-exit=0"]}  # by: is clang  # fmt: skip


def default_compiler() -> str:
    """The C++ compiler: ``$CXX``, or g++."""
    return os.environ.get("CXX", "g++")


def build_library(
    sources: Sequence[Path], folder: Path, checked: bool, include_directories: Sequence[Path] = (), jobs: int = 2
) -> Path:
    """Translates, compiles and links ``sources``, doing again only what has changed; returns the library.

    Raises
    ------
    SubsetError
        When a source is outside the subset, or a compiler refuses what was made of it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / ("kernels_checked.so" if checked else "kernels.so")
    compiler = default_compiler()
    checked_flags = [*_CHECKED_FLAGS, *_NO_ENTRY_HOOKS["clang" in compiler]]
    common = [compiler, "-std=c++20", "-fPIC", "-fvisibility=hidden", "-ftls-model=initial-exec", "-O2"]
    common += [f"-I{path}" for path in (_CORE, _SIM, _SIM / "msl")]
    if platform.machine() in ("x86_64", "AMD64"):
        common.append("-march=x86-64-v3")
    skipped = _ONLY_FAST if checked else _ONLY_CHECKED
    compilations = [
        (path, [*common, "-Wall", "-Wextra"])
        for path in sorted((_SIM / "runtime").glob("*.cpp"))
        if path.stem not in skipped
    ]
    _write(folder / "registry.cpp", registry([path.stem for path in sources]))
    compilations.append((folder / "registry.cpp", common))
    kernel_flags = [*common, *_KERNEL_FLAGS, *(checked_flags if checked else [])]
    definition = "LILY_CHECKED=1" if checked else "LILY_DEVICE_TILE=1"
    for source in sources:
        includes = [*include_directories, ROOT / "metal"]
        text = preprocess(source, compiler, includes, ["LILY_SIM=1", definition], 310)
        translated, _ = translate(text, SimBackend(source.stem))
        _write(folder / f"kernel_{source.stem}.cpp", translated)
        compilations.append((folder / f"kernel_{source.stem}.cpp", kernel_flags))
    with ThreadPoolExecutor(jobs) as pool:
        objects = list(pool.map(lambda one: _compile(*one, folder), compilations))
    if _is_older(library, objects):
        _run([compiler, "-shared", "-o", str(library), *map(str, objects), "-lpthread"])
        if checked:
            library.with_suffix(".lines").write_text(line_table(library))
    return library


def _headers() -> list[Path]:
    return [*(_CORE / "device" / "msl").glob("*.h"), *(_SIM / "msl").glob("*.h"), *(_SIM / "runtime").glob("*.h")]


def _write(path: Path, text: str) -> None:
    """Writes unless the file has this text already, so that its time tells when it changed."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def _is_older(output: Path, inputs: Sequence[Path]) -> bool:
    return not output.exists() or any(path.stat().st_mtime >= output.stat().st_mtime for path in inputs)


def _compile(source: Path, command: list[str], folder: Path) -> Path:
    output = folder / f"{source.stem}.o"
    if _is_older(output, [source, *_headers()]):
        _run([*command, "-c", str(source), "-o", str(output)])
    return output


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SubsetError(done.stderr.strip())
