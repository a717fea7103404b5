"""Sets up every run: no use of the user's cache folder, one thread for each other library, the option --quick."""

import os
import sys
import tempfile
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent

if "PYTEST_XDIST_WORKER" in os.environ:  # more threads would fight for the same cores
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):  # read when PyTorch and NumPy are first imported
        os.environ.setdefault(name, "1")

_CACHE = tempfile.TemporaryDirectory(prefix="lily-tests-")  # removed at the end
os.environ["LILY_CACHE_DIR"] = _CACHE.name

# An editable install that rebuilds itself needs cmake, which lies beside the interpreter.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


def pytest_addoption(parser: pytest.Parser) -> None:
    """--quick: the files of tests/quick.txt."""
    parser.addoption("--quick", action="store_true", help="only the files that tests/quick.txt lists: a minute")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Whether a file is left out."""
    if not config.getoption("--quick") or not collection_path.name.startswith("test_"):
        return None
    listed = (TESTS / "quick.txt").read_text(encoding="utf-8").splitlines()
    return collection_path.relative_to(TESTS).as_posix() not in listed or None
