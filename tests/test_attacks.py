"""Each attack of tools/attack at a tiny size: that they still run, and see what they should see."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tools.attack import hangs, served, shutdown, slow_readers
from tools.attack.heavy_bodies import HEAVY
from tools.attack.isolated import attempt_all, outcome_of
from tools.attack.limits import Limits
from tools.attack.registry import ATTACKS

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the attacks look at /proc")

SIZES = {"checkpoints": 4, "states": 4, "kills": 2, "chaos": 8, "hangs": 1, "ends": 1, "dropped": 2, "encoding": 1}
SIZES |= {"shutdown": 1, "smuggling": 2, "slow": 1, "turns": 4, "api": 8}

SMALL = ("/v1/completions", b'{"prompt": "x", "max_tokens": 2}')


def test_all_attacks_are_tried_here() -> None:
    assert set(SIZES) == set(ATTACKS)


@pytest.mark.parametrize("name", SIZES)
def test_it_runs_and_finds_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_readers, "WRITE_SECONDS", 0.3)  # how long its clients read slowly
    monkeypatch.setattr(hangs, "heavy_request", lambda name: SMALL)
    monkeypatch.setattr(served, "_warm_up", lambda server: None)
    for module in (hangs, shutdown):
        monkeypatch.setattr(module, "idle_end", lambda *options: 10.0)
    monkeypatch.setenv("LILY_CACHE_DIR", os.environ.get("LILY_CACHE_DIR", "/nonexistent"))  # which some of them change
    figures = ATTACKS[name].run(Limits(SIZES[name]))
    assert figures.faults == []
    assert figures.tried >= SIZES[name]


def test_every_heavy_body_can_be_made() -> None:
    for name, (path, make) in HEAVY.items():
        assert path.startswith("/"), name
        if not any(word in name for word in ("json", "messages", "biases", "prompt", "000", "keys")):  # seconds
            assert make(), name


def _prepare(folder: Path) -> None:
    import lily  # noqa: F401 -- which takes a while


def _misbehave(context: None, rng: object, seed: int) -> tuple[str, str]:
    if seed == 1:
        os.abort()
    if seed == 2:
        time.sleep(60)
    return outcome_of((lambda: 1 / 0) if seed == 3 else lambda: None), f"case {seed}"


def test_crashes_hangs_and_raw_errors_are_seen() -> None:
    figures = attempt_all("none", _prepare, _misbehave, Limits(5), seconds_each=0.6, bytes_each=1 << 30)
    assert (figures.tried, figures.fine, figures.crashes, figures.hangs, figures.raw) == (5, 2, 1, 1, 1)
    assert len(figures.faults) == 3


def test_the_command_says_what_there_is_and_its_status_what_it_found() -> None:
    command = [sys.executable, "-m", "tools.attack"]
    shown = subprocess.run([*command, "--help"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert all(name in shown.stdout for name in ATTACKS)
    tried = subprocess.run([*command, "turns", "--count", "2"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert tried.returncode == 0, tried.stderr
    assert tried.stdout.splitlines()[1].split()[:4] == ["turns", "2", "0", "2"]
