"""The directory of a prefix cache, shared with other processes and with unrelated files.

Lily recognises its files by their full name and their header. Nothing else is opened for writing, replaced or removed:
no other name, no symbolic link, no directory, no device.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from lily.checks.arguments import as_path
from lily.errors import ConfigError
from lily.files.file_digest import FileStamp
from lily.files.partial_files import remove_abandoned, unlink_own
from lily.files.regular_file import open_regular
from lily.session.session_header import is_session_file

__all__ = ["SUFFIX", "CacheDirectory", "cache_path"]

SUFFIX = ".lily-session"

_NAME = r"[0-9a-f]{40}\.lily-session"
_PARTIAL = rf"\.{_NAME}\.[0-9]{{1,10}}-[0-9a-f]{{8}}\.partial"
_LOCK_POLL_SECONDS = 0.05


def cache_path(given: object) -> Path:
    """The directory given as ``prefix_cache_dir``; ConfigError if it is not one."""
    path = as_path("prefix_cache_dir", given, ConfigError)
    if not str(path).strip() or (str(path) == "." and given != "."):  # Path("") is Path(".")
        raise ConfigError(
            "prefix_cache_dir is empty; give a directory (the current one by its full path), or leave it out"
        )
    name = str(given)
    if name.startswith("~") and os.path.expanduser(name) == name:  # noqa: PTH111 -- an unknown user
        raise ConfigError(f"prefix_cache_dir: there is no home directory for {name}")
    return path


class CacheDirectory:
    """Lists, locks and removes the cache's own files."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def make(self) -> None:
        """Create it if missing; OSError if that fails or it cannot be listed."""
        self.path.mkdir(parents=True, exist_ok=True)
        with os.scandir(self.path):
            pass

    def stamp(self) -> tuple[int, int]:
        """A value that changes when names are added or removed."""
        status = self.path.stat()
        return status.st_ino, status.st_mtime_ns

    def complete(self) -> dict[str, FileStamp]:
        """Regular files with the names of complete files; their contents are not looked at."""
        return {name: stamp for name, stamp in self._regular_files() if re.fullmatch(_NAME, name)}

    def partial_bytes(self) -> int:
        """Bytes of files that are being written, or were when their process was killed."""
        return sum(stamp.size for name, stamp in self._regular_files() if re.fullmatch(_PARTIAL, name))

    def is_own(self, name: str) -> bool:
        """Whether a file with a matching name has the header that Lily writes."""
        try:
            with open_regular(self.path / name, follow=False) as descriptor:
                return is_session_file(self.path / name, descriptor)
        except OSError:
            return False

    def remove(self, name: str, stamp: FileStamp) -> None:
        """Remove one of the cache's own files if its stamp is unchanged; otherwise do nothing."""
        if not re.fullmatch(_NAME, name):
            return
        with contextlib.suppress(OSError), open_regular(self.path / name, follow=False) as descriptor:
            if _same(os.fstat(descriptor), stamp):
                unlink_own(self.path / name, descriptor, is_session_file)

    def remove_abandoned(self) -> None:
        """Remove the partial files of processes that were killed."""
        remove_abandoned(self.path, _NAME, is_session_file)

    @contextlib.contextmanager
    def locked(self, check: Callable[[], None]) -> Iterator[None]:
        """Allow one writer at a time among all processes. While waiting, calls `check`, which may raise."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            while not _lock(descriptor):
                check()
                time.sleep(_LOCK_POLL_SECONDS)
            yield
        finally:
            os.close(descriptor)

    def _regular_files(self) -> list[tuple[str, FileStamp]]:
        found = []
        with os.scandir(self.path) as entries:
            for entry in entries:
                if not entry.name.endswith((SUFFIX, ".partial")):
                    continue
                with contextlib.suppress(OSError):  # it is gone
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode):
                        found.append((entry.name, FileStamp.of(status)))
        return found


def _same(status: os.stat_result, stamp: FileStamp) -> bool:
    """Whether it is the same file with content of the same length; its times change with every use."""
    now = FileStamp.of(status)
    return (now.device, now.inode, now.size) == (stamp.device, stamp.inode, stamp.size)


def _lock(descriptor: int) -> bool:
    """Take the lock; also true if the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EWOULDBLOCK, errno.EACCES, errno.EINTR)
    return True
