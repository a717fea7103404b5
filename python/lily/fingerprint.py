"""The identity of loaded weights: equal for copies of a checkpoint, another one as soon as a single byte differs."""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from lily.checkpoint import Checkpoint
from lily.digest_records import DigestRecords, now_ns
from lily.errors import CheckpointError
from lily.file_digest import FileStamp, file_digest

__all__ = ["WeightsIdentity"]

logger = logging.getLogger("lily")

_MOST_THREADS = 8
_TOLD_BYTES = 1 << 30  # hashing more than that is told


class WeightsIdentity:
    """Hash of the dimensions, of where every tensor lies, and of every byte of the files. Thread-safe.

    The files' names and folder do not matter. A file is hashed when the identity is first needed, and never again while
    its path, inode, size and times stay: see `DigestRecords`.
    """

    def __init__(self, checkpoint: Checkpoint, records: DigestRecords | None = None) -> None:
        self._checkpoint = checkpoint
        self._records = DigestRecords() if records is None else records
        self._lock = threading.Lock()
        self._value: str | None = None

    @property
    def total_bytes(self) -> int:
        """Bytes of the files."""
        return sum(self._checkpoint.source.file_sizes)

    def recorded(self) -> str | None:
        """The identity, if no file needs to be hashed for it."""
        if self._value is None:
            digests = [self._recorded_digest(path) for path in self._paths()]
            known = [digest for digest in digests if digest is not None]
            if len(known) == len(digests):
                self._value = self._combine(known)
        return self._value

    def get(self, *, threads: int | None = None, stopped: Callable[[], bool] = lambda: False) -> str:
        """The identity, after hashing whatever is not recorded.

        Raises
        ------
        CheckpointError
            A file cannot be read any more, or is not the one that was loaded.
        CancelledError
            `stopped` returned true.
        """
        with self._lock:
            value = self.recorded()
            if value is None:
                count = min(_MOST_THREADS, os.cpu_count() or 1) if threads is None else threads
                value = self._combine(self._hash(count, stopped))
                self._value = value
        return value

    def _hash(self, threads: int, stopped: Callable[[], bool]) -> list[str]:
        started = time.perf_counter()
        hashed, digests = 0, []
        for path, size in zip(self._paths(), self._checkpoint.source.file_sizes, strict=True):
            digest = self._recorded_digest(path)
            if digest is None:
                if self.total_bytes > _TOLD_BYTES:
                    logger.info("hashing %s (%.1f GB), once, to know these weights again", path.name, size / 1e9)
                began = now_ns()
                stamp, digest = file_digest(path, threads, stopped)
                self._check_size(path, stamp, size)
                self._records.keep(path, stamp, digest, began)
                hashed += size
            digests.append(digest)
        seconds = time.perf_counter() - started
        level = logging.INFO if hashed > _TOLD_BYTES else logging.DEBUG
        logger.log(level, "hashed %.2f GB in %.2f s (%.2f GB/s)", hashed / 1e9, seconds, hashed / 1e9 / seconds)
        return digests

    def _combine(self, digests: list[str]) -> str:
        source = self._checkpoint.source
        config = {name: str(value) for name, value in sorted(asdict(self._checkpoint.config).items())}
        whole = hashlib.sha256()
        for part in (config, source.file_sizes, source.matrices, source.vectors, digests):
            whole.update(repr(part).encode())
        return whole.hexdigest()

    def _recorded_digest(self, path: Path) -> str | None:
        try:
            return self._records.find(path, FileStamp.of(path.stat()))
        except OSError:
            return None  # hashing it tells what is wrong

    def _paths(self) -> list[Path]:
        return [Path(file) for file in self._checkpoint.source.files]

    def _check_size(self, path: Path, stamp: FileStamp, size: int) -> None:
        if stamp.size != size:
            raise CheckpointError(f"{path}: it was changed after the model was loaded; load the model again")
