"""Runs the C preprocessor over a Metal source, with empty Metal headers in the place of Apple's."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from .tokens import SubsetError

STUB_HEADERS = Path(__file__).parent / "headers"


def preprocess(
    source: Path, compiler: str, include_directories: Sequence[Path], definitions: Sequence[str], metal_version: int
) -> str:
    """The preprocessed text with line markers.

    Raises
    ------
    SubsetError
        With the preprocessor's message when it fails.
    """
    command = [
        compiler, "-E", "-x", "c++", "-std=c++17", "-nostdinc", "-I", str(STUB_HEADERS),
        "-D__METAL__=1", f"-D__METAL_VERSION__={metal_version}",
        *(f"-I{directory}" for directory in include_directories),
        *(f"-D{definition}" for definition in definitions),
        str(source),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SubsetError(done.stderr.strip())
    return done.stdout
