"""bring_in: the page cache holds one engine's files, and not the other's."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

__all__ = ["bring_in"]

_PIECE_BYTES = 1 << 24


def bring_in(files: Iterable[Path], instead_of: Iterable[Path] = ()) -> None:
    """Read `files` once, after the system was told that `instead_of` are not needed.

    Two models may not fit into memory together: without this, an engine's first runs measure the disk.
    """
    for path in instead_of:
        with path.open("rb") as file:
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    buffer = bytearray(_PIECE_BYTES)
    for path in files:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
