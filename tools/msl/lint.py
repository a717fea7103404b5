"""Checks Metal sources with clang: address spaces, names, types and argument counts, in two dialects."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from .lint_backend import LintBackend
from .preprocess import preprocess
from .tokens import SubsetError
from .translate import translate

_HEADERS = Path(__file__).parent / "lint"
_OLDEST_CLANG = 16
_WARNINGS = [
    "-Wall", "-Wextra", "-Werror", "-Wdouble-promotion", "-Wc++17-extensions", "-Wvla", "-Wno-unused-parameter",
    "-Wno-unused-command-line-argument", "-Wno-undefined-inline", "-Wno-undefined-internal",
    "-Wno-undefined-var-template", "-Wno-unused-variable", "-Wno-unused-function", "-Wno-unused-const-variable",
    "-Wno-unused-template", "-Wno-unknown-warning-option", "-Wno-unknown-pragmas", "-Wno-pass-failed",
    "-Wno-unused-local-typedef", "-Wno-sign-compare", "-Wno-c++20-extensions",
]  # fmt: skip
_CPP = ["-x", "c++", "-std=c++14", "-nostdinc"]
_OPENCL = ["-x", "clcpp", "-cl-std=CLC++2021", "-Xclang", "-cl-ext=-cl_khr_fp64,-__opencl_c_fp64,+cl_khr_fp16",
           "-cl-no-stdinc"]  # fmt: skip


def find_clang() -> str | None:
    """A clang++ that is new enough, or None."""
    for name in ["clang++", *(f"clang++-{version}" for version in range(40, _OLDEST_CLANG - 1, -1))]:
        if path := shutil.which(name):
            text = subprocess.run([path, "--version"], capture_output=True, text=True).stdout
            found = re.search(r"version (\d+)", text)
            if found and int(found.group(1)) >= _OLDEST_CLANG:
                return path
    return None


def lint(sources: Sequence[Path], include_directories: Sequence[Path]) -> list[str]:
    """What is wrong with the sources, one finding a line: ``file:line:column: error: text``.

    Raises
    ------
    SubsetError
        When there is no clang to check with.
    """
    clang = find_clang()
    if clang is None:
        raise SubsetError(f"the lint needs clang {_OLDEST_CLANG} or later (apt-get install clang-19)")
    findings: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for source in sources:
            findings += _lint_one(source, clang, include_directories, Path(folder))
    return list(dict.fromkeys(findings))


def _lint_one(source: Path, clang: str, include_directories: Sequence[Path], folder: Path) -> list[str]:
    try:
        text, _ = translate(preprocess(source, clang, include_directories, ["LILY_LINT=1"], 310), LintBackend())
    except SubsetError as error:
        return str(error).splitlines()
    translated = folder / f"{source.stem}.cl"
    translated.write_text(text)
    findings: list[str] = []
    for dialect in (_CPP, _OPENCL):
        command = [clang, *dialect, "-fsyntax-only", "-ferror-limit=0", "-fno-caret-diagnostics", "-I", str(_HEADERS)]
        done = subprocess.run([*command, *_WARNINGS, str(translated)], capture_output=True, text=True)
        lines = [line for line in done.stderr.splitlines() if ": error:" in line or ": fatal error:" in line]
        findings += lines
        if done.returncode != 0 and not lines:
            findings.append(f"{source}:1: error: {done.stderr.strip()}")
    return findings
