"""resident_memory, major_faults: the process's memory, and pages that it had to read from disk."""

from __future__ import annotations

import sys
from pathlib import Path

__all__ = ["major_faults", "resident_memory"]

_FIELDS = {"VmRSS": "resident", "RssAnon": "anonymous", "RssFile": "file_backed", "VmHWM": "peak"}


def resident_memory() -> dict[str, int]:
    """Bytes by kind, from Linux's /proc; empty without it."""
    status = Path("/proc/self/status")
    if not status.exists():
        return {}
    found = {}
    for line in status.read_text().splitlines():
        name, _, value = line.partition(":")
        if name in _FIELDS:
            found[_FIELDS[name]] = int(value.split()[0]) * 1024
    return found


def major_faults() -> int:
    """Pages that this process has had to read from disk; 0 if the system does not tell."""
    if sys.platform == "win32":
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt
