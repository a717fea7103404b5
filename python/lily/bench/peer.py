"""run_llama_cpp: one round of the peer, in a process of its own."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

from lily.bench.errors import BenchError

__all__ = ["MODES", "run_llama_cpp"]

# llama.cpp's two ways to hold weights: a copy interleaved for the CPU's kernels (its default), or as mapped.
MODES = {"repacked": True, "as mapped": False}
_DRIVER = Path(__file__).with_name("llama_cpp_driver.py")


def run_llama_cpp(python: str, mode: str, job: dict[str, Any]) -> dict[str, Any]:
    """Seconds by measurement, and the version.

    Parameters
    ----------
    python : str
        An interpreter that has llama-cpp-python.
    mode : str
        One of `MODES`.
    job : dict
        file, threads, prompt (lengths), context (lengths), decode (tokens), warm_up (length of a prompt).

    Raises
    ------
    BenchError
        The interpreter or the peer failed; the message holds the end of what it wrote.
    """
    wanted = json.dumps({**job, "repack": MODES[mode]})
    try:
        # Isolated (-I): the driver's folder must not shadow the peer's modules.
        done = subprocess.run([python, "-I", str(_DRIVER)], input=wanted, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BenchError(
            f"{python}: cannot be run ({error.strerror}); name an interpreter with llama-cpp-python"
        ) from error
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()[-3:]
        hint = "; install llama-cpp-python there" if "No module named" in done.stderr else ""
        if done.returncode == -signal.SIGILL:
            hint = "; illegal instruction, perhaps built for another processor: build llama-cpp-python on this machine"
        raise BenchError(f"llama.cpp ({mode}) failed with exit code {done.returncode}{hint}: " + " | ".join(lines))
    try:
        result: dict[str, Any] = json.loads(done.stdout)
    except json.JSONDecodeError as error:
        raise BenchError(f"llama.cpp ({mode}) gave no result but: {done.stdout[-200:]!r}") from error
    return result
