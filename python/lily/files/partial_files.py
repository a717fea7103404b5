"""Files that are being written, and half-written files of killed processes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from lily.files.regular_file import open_regular

__all__ = ["lock_partial", "partial_name", "remove_abandoned", "unlink_own"]

IsOwn = Callable[[Path, int], bool]

_ABANDONED_SECONDS = 3600  # seconds; used if neither a lock nor a process id can tell


def partial_name(name: str) -> str:
    """Name of the hidden file that becomes `name` when complete."""
    return f".{name}.{os.getpid()}-{secrets.token_hex(4)}.partial"


def lock_partial(stream: BinaryIO) -> None:
    """Show other processes that a file is being written; call this before the first byte."""
    with contextlib.suppress(OSError):  # without locks, only the file's age tells
        fcntl.flock(stream, fcntl.LOCK_EX)


def remove_abandoned(directory: Path, name: str, is_own: IsOwn) -> None:
    """Remove the partial files of killed processes that would have become a file named `name`.

    `name` is a regular expression. A file with such a name is left alone unless it begins like Lily's files, which
    `is_own` tells, or is empty because its process was killed before the first byte.
    """
    pattern = re.compile(rf"\.(?:{name})\.([0-9]{{1,10}})-[0-9a-f]{{8}}\.partial")
    with os.scandir(directory) as entries:
        names = [entry.name for entry in entries if entry.name.endswith(".partial")]
    for found in names:
        writer = pattern.fullmatch(found)
        if writer is None:
            continue
        path = directory / found
        with contextlib.suppress(OSError), open_regular(path, follow=False) as descriptor:
            if _is_abandoned(descriptor, int(writer[1])):
                unlink_own(path, descriptor, lambda at, opened: os.fstat(opened).st_size == 0 or is_own(at, opened))


def unlink_own(path: Path, descriptor: int, is_own: IsOwn) -> None:
    """Remove the open file at `path` if it is a regular file and one of Lily's, which `is_own` tells."""
    status = os.fstat(descriptor)
    if is_own(path, descriptor) and stat.S_ISREG(status.st_mode) and os.path.samestat(status, path.lstat()):
        path.unlink(missing_ok=True)


def _is_abandoned(descriptor: int, writer: int) -> bool:
    """Whether no process writes the file: its writer would hold its lock."""
    age = time.time() - os.fstat(descriptor).st_mtime
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EWOULDBLOCK, errno.EACCES, errno.EINTR) and age > _ABANDONED_SECONDS
    return age > _ABANDONED_SECONDS or not _is_running(writer)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True  # another user's
    return True
