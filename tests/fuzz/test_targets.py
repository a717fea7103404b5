"""Every fuzz target for some seconds, with the same inputs each time, and the inputs that once failed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lily._core", reason="needs the built package")
pytest.importorskip("starlette", reason="needs the extra for the server")
pytest.importorskip("llguidance", reason="needs the extra for structured output")

from fuzz.run import FOUND, ROOT, TARGETS
from fuzz.target import decode_input, encode_input

# What fails today: targets, and inputs as target/name. Take each out with the change that mends it.
PENDING: set[str] = set()
FOUND_INPUTS = sorted(FOUND.glob("*/*.json"))


def fuzz(*arguments: str | Path) -> None:
    """A process of its own: a hang or a crash ends it alone."""
    command = [sys.executable, "-m", "tests.fuzz", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]


def unless_pending(places: Iterable[str]) -> list[Any]:
    pending = pytest.mark.xfail(reason="not mended yet")
    return [pytest.param(place, marks=[pending] if place in PENDING else []) for place in places]


@pytest.mark.parametrize("name", unless_pending(TARGETS))
def test_new_inputs(name: str, tmp_path: Path) -> None:
    fuzz("--save", tmp_path, name)
    assert list(tmp_path.iterdir()) == []


MENDED = [file for file in FOUND_INPUTS if f"{file.parent.name}/{file.stem}" not in PENDING]


@pytest.mark.parametrize("name", sorted({file.parent.name for file in MENDED}))
def test_inputs_that_once_failed(name: str, tmp_path: Path) -> None:
    files = [file for file in MENDED if file.parent.name == name]
    fuzz("--save", tmp_path, "--replay", *files, "--", name)


@pytest.mark.parametrize("place", unless_pending(place for place in sorted(PENDING) if "/" in place))
def test_pending_inputs(place: str, tmp_path: Path) -> None:
    name, _, stem = place.partition("/")
    fuzz("--save", tmp_path, "--replay", FOUND / name / f"{stem}.json", "--", name)


def test_every_input_that_was_kept_belongs_to_a_target() -> None:
    assert {file.parent.name for file in FOUND_INPUTS} <= set(TARGETS)
    assert {*TARGETS, *(f"{file.parent.name}/{file.stem}" for file in FOUND_INPUTS)} >= PENDING


def test_inputs_survive_their_files() -> None:
    value = {"a": [b"\x00\xff", "\ud800", None, 1.5, {"": []}], "b": 2**70}
    assert decode_input(encode_input(value)) == value
