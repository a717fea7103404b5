"""bring_in: fills the page cache with one engine's files instead of another's."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

__all__ = ["bring_in"]

_PIECE_BYTES = 1 << 24
_PASSES = 6


def bring_in(files: Iterable[Path], instead_of: Iterable[Path] = ()) -> int:
    """Read `files` after telling the system that `instead_of` are not needed.

    Two models may not fit into memory together: without this, an engine's first runs measure the disk. While the system
    makes room for large pages it may drop pages that were just read, so files are read until all of their bytes come
    from memory.

    Returns
    -------
    int
        Pieces (of 16 MiB) that were not in memory in the last pass; 0 if the system reports that all were.
    """
    for path in instead_of:
        with path.open("rb") as file:
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    paths = list(files)
    missing = 0
    for _ in range(_PASSES if hasattr(os, "RWF_NOWAIT") else 1):
        missing = sum(_read(path) for path in paths)
        if missing == 0:
            break
    return missing


def _read(path: Path) -> int:
    """Read a file; returns the number of pieces that came from disk, as far as the system can tell."""
    buffer = bytearray(_PIECE_BYTES)
    missing = 0
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        for offset in range(0, size, _PIECE_BYTES):
            wanted = min(_PIECE_BYTES, size - offset)
            if _read_cached(file.fileno(), buffer, offset) >= wanted:
                continue
            missing += 1
            file.seek(offset)
            while wanted > 0 and (count := file.readinto(memoryview(buffer)[:wanted])):
                wanted -= count
    return missing


def _read_cached(descriptor: int, buffer: bytearray, offset: int) -> int:
    """Bytes at `offset` that can be read without waiting for the disk; 0 if the system cannot tell."""
    if not hasattr(os, "RWF_NOWAIT"):
        return 0
    try:
        return os.preadv(descriptor, [buffer], offset, os.RWF_NOWAIT)
    except OSError:  # none of it is in memory, or the file system does not support it
        return 0
