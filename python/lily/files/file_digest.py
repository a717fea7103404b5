"""The SHA-256 of a file's pieces, computed by several threads in bounded memory."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lily.errors import CancelledError, CheckpointError
from lily.files.regular_file import open_regular, read_at

__all__ = ["PIECE_BYTES", "FileStamp", "file_digest"]

PIECE_BYTES = 4 << 20  # each thread holds one


@dataclass(frozen=True)
class FileStamp:
    """Attributes that change whenever a file's content does, as far as the file system tells."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @staticmethod
    def of(status: os.stat_result) -> FileStamp:
        """The stamp in the result of `os.stat`."""
        device = status.st_dev & (1 << 64) - 1  # as in `lily.checkpoint.source.FileIdentity`
        return FileStamp(device, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def file_digest(path: Path, threads: int, stopped: Callable[[], bool]) -> tuple[FileStamp, str]:
    """(stamp, digest) of a file of which every byte was read.

    Raises
    ------
    CheckpointError
        It cannot be read, or was changed meanwhile.
    CancelledError
        `stopped` returned true.
    """
    try:
        with open_regular(path) as descriptor:
            stamp = FileStamp.of(os.fstat(descriptor))
            digests = _Pieces(descriptor, stamp.size, stopped).hash(threads)
            if FileStamp.of(os.fstat(descriptor)) != stamp or FileStamp.of(path.stat()) != stamp:
                raise CheckpointError(f"{path}: it was changed while it was read; load the model again")
    except OSError as error:
        raise CheckpointError(f"{path}: it cannot be read any more ({error.strerror or error})") from error
    return stamp, hashlib.sha256(b"".join([stamp.size.to_bytes(8, "little"), *digests])).hexdigest()


class _Pieces:
    """The pieces of one file, taken by threads in order."""

    def __init__(self, descriptor: int, size: int, stopped: Callable[[], bool]) -> None:
        self._descriptor = descriptor
        self._size = size
        self._stopped = stopped
        self._digests = [b""] * -(-size // PIECE_BYTES)
        self._next = itertools.count()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._error: Exception | None = None

    def hash(self, threads: int) -> list[bytes]:
        """Their digests, in order."""
        count = min(threads, len(self._digests))
        workers = [threading.Thread(target=self._work, name="lily-hash", daemon=True) for _ in range(count - 1)]
        try:
            for worker in workers:
                worker.start()
            self._work()
        finally:  # Ctrl-C arrives here too; each thread ends after its current piece
            self._ended.set()
            for worker in workers:
                with contextlib.suppress(RuntimeError):  # it was not started
                    worker.join()
        if self._error is not None:
            raise self._error
        return self._digests

    def _work(self) -> None:
        buffer = memoryview(bytearray(min(PIECE_BYTES, self._size)))
        while True:
            with self._lock:
                index = next(self._next)
            if index >= len(self._digests):
                return
            try:
                self._digests[index] = self._digest(index, buffer)
            except Exception as error:  # reported to the caller, from whichever thread
                self._error = self._error or error
                self._ended.set()
            if self._ended.is_set():
                return

    def _digest(self, index: int, buffer: memoryview) -> bytes:
        if self._stopped():
            raise CancelledError("the weights are no longer needed")
        offset = index * PIECE_BYTES
        piece = buffer[: min(PIECE_BYTES, self._size - offset)]
        if not read_at(self._descriptor, offset, piece):
            raise OSError("it ends early")
        return hashlib.sha256(piece).digest()
