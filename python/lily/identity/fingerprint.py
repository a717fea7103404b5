"""The identity of loaded weights: equal for copies of a checkpoint, different if a single byte differs."""

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
from lily.files.file_digest import file_digest
from lily.identity.digest_records import DigestRecords, now_ns
from lily.identity.loaded_file import LoadedFile

__all__ = ["WeightsIdentity"]

logger = logging.getLogger("lily")

_MOST_THREADS = 8
_TOLD_BYTES = 1 << 30  # bytes; hashing more is logged


class WeightsIdentity:
    """Hash of the dimensions, the location of every tensor, and every byte of the files. Thread-safe.

    The files' names and folder do not matter. A file is hashed when the identity is first needed, and not again while
    its path, inode, size and times are unchanged: see `DigestRecords`. The file at a path counts only if it is the one
    that was loaded: see `LoadedFile`.
    """

    def __init__(self, checkpoint: Checkpoint, records: DigestRecords | None = None) -> None:
        source = checkpoint.source
        self._checkpoint = checkpoint
        self._files = [
            LoadedFile.of(Path(at), known) for at, known in zip(source.files, source.identities, strict=True)
        ]
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
            digests = [self._records.find(file.path, file.stamp) for file in self._files]
            known = [digest for digest in digests if digest is not None]
            if len(known) == len(digests):
                self._value = self._combine(known)
        return self._value

    def get(self, *, threads: int | None = None, stopped: Callable[[], bool] = lambda: False) -> str:
        """The identity; hashes whatever is not recorded.

        Raises
        ------
        CheckpointError
            A file cannot be read any more, or another file is at its path.
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
        for file in self._files:
            digest = self._records.find(file.path, file.stamp)
            if digest is None:
                size, found = file.stamp.size, file.find()
                if self.total_bytes > _TOLD_BYTES:
                    logger.info("hashing %s (%.1f GB), once, to know these weights again", file.path.name, size / 1e9)
                began = now_ns()
                stamp, digest = file_digest(file.path, threads, stopped)
                if stamp != found:
                    file.refuse("was changed after the model was loaded")
                self._records.keep(file.path, stamp, digest, began)
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
