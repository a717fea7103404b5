"""resident_memory: what the process holds in memory, apart from and within mapped files."""

from __future__ import annotations

from pathlib import Path

__all__ = ["resident_memory"]

_FIELDS = {"VmRSS": "resident", "RssAnon": "anonymous", "RssFile": "file_backed", "VmHWM": "peak"}


def resident_memory() -> dict[str, int]:
    """Bytes by kind, from Linux's /proc; empty where there is none."""
    status = Path("/proc/self/status")
    if not status.exists():
        return {}
    found = {}
    for line in status.read_text().splitlines():
        name, _, value = line.partition(":")
        if name in _FIELDS:
            found[_FIELDS[name]] = int(value.split()[0]) * 1024
    return found
