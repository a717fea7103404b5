"""Bounds on what one input may take: time in Python and in native code, and memory."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["TookTooLong", "bounded", "limit_process"]

_STATUS = Path("/proc/self/status")
_CLEAR_PEAK = Path("/proc/self/clear_refs")


class TookTooLong(BaseException):
    """An input took more than its time. No Exception, so that nothing under test catches it."""


@contextlib.contextmanager
def bounded(seconds: float, megabytes: int) -> Iterator[None]:
    """Fail if the block takes longer, or if memory grows by more within it.

    What hangs in Python or waits for the system is interrupted with TookTooLong; what hangs in native code ends the
    process with a listing of all threads.
    """

    def interrupt(_: int, __: Any) -> None:
        where = sys._current_frames()
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        stacks = "; ".join(f"{names.get(ident, ident)} at {_place(frame)}" for ident, frame in where.items())
        raise TookTooLong(f"more than {seconds:g} s: {stacks}")

    before = signal.signal(signal.SIGALRM, interrupt)
    base = _reset_peak()
    faulthandler.dump_traceback_later(seconds * 2, exit=True)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    started = time.monotonic()
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, before)
    grown = (_memory("VmHWM") - base) / 2**20
    assert grown <= megabytes, f"memory grew by {grown:.0f} MiB, and {megabytes} are allowed"
    taken = time.monotonic() - started
    assert taken <= seconds, f"it took {taken:.1f} s, and {seconds:g} are allowed"  # native code that held the signal


def limit_process(megabytes: int) -> None:
    """Let allocations fail before they hurt the machine, where no sanitizer needs the address space."""
    if "libasan" not in os.environ.get("LD_PRELOAD", "") and "libtsan" not in os.environ.get("LD_PRELOAD", ""):
        resource.setrlimit(resource.RLIMIT_DATA, (megabytes << 20, megabytes << 20))


def _place(frame: Any) -> str:
    names = []
    while frame is not None and len(names) < 6:
        names.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
        frame = frame.f_back
    return " < ".join(names)


def _reset_peak() -> int:
    with contextlib.suppress(OSError):
        _CLEAR_PEAK.write_text("5")
    return _memory("VmRSS")


def _memory(name: str) -> int:
    if not _STATUS.exists():
        return 0
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) << 10
