"""What is under version control: sources alone, which mean the same on every machine."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def tracked(*options: str) -> list[str]:
    """Lines of `git ls-files`."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a clone")
    done = subprocess.run(["git", "ls-files", *options], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(done.stderr.strip())  # a clone of another user, which git refuses to read
    return done.stdout.splitlines()


def test_nothing_that_a_build_makes_is_tracked():
    assert tracked("pyproject.toml") == ["pyproject.toml"]
    assert tracked("--cached", "--ignored", "--exclude-standard") == []


def test_no_tracked_file_is_a_link():
    assert [line for line in tracked("--stage") if line.startswith("120000")] == []
