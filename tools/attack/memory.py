"""What Linux tells of a process: the memory that it holds and held at most, the time that it computed. Elsewhere 0."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

__all__ = ["cpu_seconds", "peak_bytes", "reset_peak", "rss_bytes"]


def rss_bytes(pid: int | str = "self") -> int:
    """Bytes that the process holds."""
    return _field(pid, "VmRSS")


def peak_bytes(pid: int | str = "self") -> int:
    """The most bytes that it held since its start or `reset_peak`."""
    return _field(pid, "VmHWM")


def reset_peak(pid: int | str = "self") -> None:
    """Let the peak begin from here."""
    with suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text("5")


def cpu_seconds(pid: int | str = "self") -> float:
    """Seconds that its threads have computed: unlike the clock's, they do not depend on what else the machine does."""
    with suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _field(pid: int | str, name: str) -> int:
    with suppress(OSError):
        found = re.search(rf"{name}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        return int(found[1]) * 1024 if found else 0
    return 0
