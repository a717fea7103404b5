"""Makes the folder that the cuda device takes its kernels from: sources for NVRTC, their header, and an index."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from .cuda_backend import CudaBackend, index_lines
from .preprocess import preprocess
from .tokens import SubsetError
from .translate import translate

_CORE = Path(__file__).resolve().parents[2] / "src" / "lily_core"
_HEADERS = _CORE / "device" / "cuda" / "msl"
_INCLUDE = re.compile(r'#include "([^"]+)"')
METAL_VERSION = 310


def build_cuda_library(
    sources: Sequence[Path], folder: Path, compiler: str, include_directories: Sequence[Path]
) -> Path:
    """Translates ``sources`` into ``folder``; returns it. Only the preprocessor of ``compiler`` is used.

    Raises
    ------
    SubsetError
        When a source is outside the subset, or two kernels have one name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob("*.cu"):
        stale.unlink()
    lines: list[str] = []
    for source in sources:
        definitions = ["LILY_CUDA=1", "LILY_DEVICE_TILE=1", "LILY_WIDE_ATTENTION=1"]
        text = preprocess(source, compiler, include_directories, definitions, METAL_VERSION)
        translated, module = translate(text, CudaBackend(source.stem))
        (folder / f"{source.stem}.cu").write_text(_without_folders(translated))
        lines += index_lines(source.stem, module)
    names = [line.split("\t")[0] for line in lines]
    if twice := {name for name in names if names.count(name) > 1}:
        raise SubsetError(f"error: several kernels have the name {', '.join(sorted(twice))}")
    (folder / "lily_msl.h").write_text(flatten(_HEADERS / "lily_msl.h"))
    (folder / "index.txt").write_text("".join(f"{line}\n" for line in sorted(lines)))
    return folder


def flatten(header: Path, seen: set[Path] | None = None) -> str:
    """The header with everything that it includes, each file once."""
    seen = set() if seen is None else seen
    seen.add(header)
    name = header.relative_to(_CORE / "device")
    parts = [f'#line 1 "{name}"\n']
    for number, line in enumerate(header.read_text().splitlines(), 1):
        if line.startswith("#pragma once"):
            parts.append("\n")
        elif include := _INCLUDE.match(line):
            found = next(path for path in (header.parent / include[1], _CORE / include[1]) if path.exists())
            if found not in seen:
                parts.append(flatten(found, seen))
                parts.append(f'#line {number + 1} "{name}"\n')
            else:
                parts.append("\n")
        else:
            parts.append(f"{line}\n")
    return "".join(parts)


def _without_folders(text: str) -> str:
    """Line markers with the names of files alone, so that the text does not depend on where it was made."""
    return re.sub(r'(?m)^(#(?:line)? \d+ ")[^"]*/([^"/]+")', r"\1\2", text)
