"""Opens and replaces only regular files: never waits for a pipe, reads a device or replaces anything else."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

__all__ = ["flush_directory", "open_regular", "read_at"]

_PIECE_BYTES = 4 << 20


@contextlib.contextmanager
def open_regular(path: str | os.PathLike[str], *, follow: bool = True) -> Iterator[int]:
    """A descriptor to read a regular file; OSError for anything else, including symbolic links unless `follow`."""
    # Non-blocking, because opening a pipe would wait for its writer; without a controlling terminal.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY | (0 if follow else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except ValueError as error:  # a NUL in the name
        raise OSError(errno.EINVAL, str(error), str(path)) from None
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, "is a directory", str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        yield descriptor
    finally:
        os.close(descriptor)


def read_at(descriptor: int, offset: int, buffer: memoryview) -> bool:
    """Fill `buffer` from a place in a file; False if the file ends before."""
    done = 0
    while done < len(buffer):
        count = _read_some(descriptor, buffer[done:], offset + done)
        if count == 0:
            return False
        done += count
    return True


def _read_some(descriptor: int, buffer: memoryview, offset: int) -> int:
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [buffer], offset)
    data = os.pread(descriptor, min(len(buffer), _PIECE_BYTES), offset)  # a Python built for older systems
    buffer[: len(data)] = data
    return len(data)


def flush_directory(directory: Path) -> None:
    """Make new names durable, if the system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
