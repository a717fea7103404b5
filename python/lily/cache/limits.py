"""Default limits of the prefix cache."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["DEFAULT_DISK_BYTES", "DEFAULT_SNAPSHOT_INTERVAL", "default_cache_bytes"]

#: Tokens between snapshots within a long prompt: with about 63 MB of recurrent state each (Qwen3.6-35B-A3B), a prompt
#: of 128K tokens leaves 16, half of the default limit.
DEFAULT_SNAPSHOT_INTERVAL = 8192

#: Maximum bytes of the files in ``prefix_cache_dir``.
DEFAULT_DISK_BYTES = 16 << 30

_LARGEST_DEFAULT = 2 << 30
_SHARE_OF_MEMORY = 10
_CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")


def default_cache_bytes() -> int:
    """A tenth of the memory of the machine or container, at most 2 GiB."""
    return min(_LARGEST_DEFAULT, _memory_bytes() // _SHARE_OF_MEMORY)


def _memory_bytes() -> int:
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        memory = _LARGEST_DEFAULT
    try:
        limit = _CONTAINER_LIMIT.read_text().strip()
    except OSError:
        return memory
    return min(memory, int(limit)) if limit.isdigit() else memory
