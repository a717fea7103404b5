"""A mapped file that becomes shorter inside a call: the process names it as it ends, if it asked for that."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from engine_helpers import expect_success, run_python

pytestmark = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="finds mappings in /proc")

# Loads a model, cuts its file, and reads a byte of the mapping that is no longer in the file.
FAULT = """
import ctypes, os, re, sys
from pathlib import Path
import lily
from lily import _core

directory, setup = sys.argv[1], sys.argv[2]
exec(setup)
with load(directory) as model, model.session() as session:
    session.prefill([1, 2, 3])
    shard = str(Path(directory).resolve() / "model-00002-of-00002.safetensors")
    line = next(line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(shard))
    begin, end = (int(number, 16) for number in re.match("([0-9a-f]+)-([0-9a-f]+)", line).groups())
    os.truncate(shard, 0)
    ctypes.string_at(end - 4096, 1)
"""
LIBRARY = "load = lambda directory: lily.Model.load(directory, threads=1)\n"
SERVER = """
import uvicorn
from lily.server import serve
uvicorn.Server.run = lambda self, sockets=None: setattr(self, "started", True)
with lily.Model.load("lily-tiny", threads=1) as served:
    serve(served, port=0)
"""
COMMAND_LINE = "from lily.cli.loading import load_model\nload = lambda directory: load_model(directory, threads=1)\n"


@pytest.fixture
def directory(checkpoint: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(checkpoint, tmp_path / "a copy"))


def fault(directory: Path, setup: str) -> subprocess.CompletedProcess[str]:
    result = run_python(FAULT, directory, setup)
    assert result.returncode == -signal.SIGBUS, (result.returncode, result.stderr)
    return result


@pytest.mark.parametrize("setup", [COMMAND_LINE, SERVER + LIBRARY])
def test_the_command_line_and_the_server_name_the_file(directory: Path, setup: str) -> None:
    lines = fault(directory, setup).stderr.splitlines()
    named = [line for line in lines if line.startswith("lily: ")]
    assert len(named) == 1
    assert str(directory / "model-00002-of-00002.safetensors") in named[0]
    assert "was truncated" in named[0]


def test_a_library_changes_no_signal(directory: Path) -> None:
    assert "lily: " not in fault(directory, LIBRARY).stderr


@pytest.mark.parametrize(
    "handler", ["import faulthandler; faulthandler.enable()", "import signal; signal.signal(signal.SIGBUS, print)"]
)
def test_a_handler_of_the_host_stays(handler: str) -> None:
    code = f"{handler}\nfrom lily import _core\nassert not _core.report_mapping_faults()"
    expect_success(run_python(code))


def test_an_unrelated_fault_is_not_blamed_on_a_file(directory: Path) -> None:
    """The mappings of models that are closed count as unrelated, too."""
    code = LIBRARY + "import signal\nassert _core.report_mapping_faults() and _core.report_mapping_faults()\n"
    code += "load(directory).close()\nsignal.raise_signal(signal.SIGBUS)"
    assert "lily: " not in fault(directory, code).stderr


def test_cut_at_any_moment(directory: Path) -> None:
    """Whenever it happens, the outcome is an error of Lily's or a named end."""
    code = """
import os, sys, threading, time
from lily.errors import CheckpointError
from lily.cli.loading import load_model

directory, delay = sys.argv[1], float(sys.argv[2])
with load_model(directory, threads=1) as model, model.session() as session:
    timer = threading.Timer(delay, os.truncate, (directory + "/model-00002-of-00002.safetensors", 0))
    timer.start()
    try:
        while True:
            session.reset()
            session.prefill(list(range(300)) * 10)
    except CheckpointError as error:
        print(error)
"""
    for delay in (0.0, 0.013, 0.05):
        copy = Path(shutil.copytree(directory, directory.with_name(f"after {delay}")))
        result = run_python(code, copy, delay)
        assert result.returncode in (0, -signal.SIGBUS), result.stderr
        text = result.stdout if result.returncode == 0 else result.stderr
        assert str(copy / "model-00002-of-00002.safetensors") in text
