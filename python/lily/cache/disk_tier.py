"""The prefix cache's second tier: session files in a directory, kept over restarts."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import threading
import weakref
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from lily import _core
from lily.cache.radix_tree import Node, RadixTree
from lily.errors import CheckpointError, ConfigError, LilyError
from lily.session_file import load_snapshot, read_tokens, save_snapshot

if TYPE_CHECKING:
    from lily.model import Model

__all__ = ["DiskTier"]

logger = logging.getLogger("lily")

_SUFFIX = ".lily-session"
# Reading a file must save at least this many tokens of prefill.
_MIN_GAIN_TOKENS = 64

Ids = npt.NDArray[np.int32]


@dataclass(frozen=True)
class _File:
    path: Path
    bytes: int
    node: Node[str]


class DiskTier:
    """Session files of one model's prompts, found by their token ids; the least recently used go first. Thread-safe.

    Failures of the disk never fail a request: they are logged, and the prompt is computed.
    """

    def __init__(self, model: Model, directory: Path, limit_bytes: int) -> None:
        self._model = weakref.ref(model)
        self._directory = directory
        self._limit = limit_bytes
        self._lock = threading.RLock()
        self._tree: RadixTree[str] = RadixTree()
        self._files: OrderedDict[str, _File] = OrderedDict()  # by name, least recently used first
        self._bytes = 0
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._scan(model)
        except OSError as error:
            raise ConfigError(f"prefix_cache_dir: {directory} is no directory to use ({error.strerror})") from error

    @property
    def files(self) -> int:
        """Files of this model's weights in the directory."""
        return len(self._files)

    @property
    def bytes(self) -> int:
        """Their bytes."""
        return self._bytes

    @property
    def limit_bytes(self) -> int:
        """Most bytes that they may take."""
        return self._limit

    def reach(self, ids: Ids, beyond: int) -> int:
        """Number of leading ids that `load` would give; 0 for none."""
        with self._lock:
            node = self._find(ids, beyond)
            return 0 if node is None else node.length

    def load(self, ids: Ids, beyond: int) -> _core.Snapshot | None:
        """The snapshot of the longest prefix of `ids`, if it saves enough over one of `beyond` tokens."""
        with self._lock:
            node = self._find(ids, beyond)
            if node is None or node.entry is None:
                return None
            name = node.entry
            path = self._files[name].path
            self._files.move_to_end(name)
        model = self._model()
        if model is None:
            return None
        try:
            snapshot, _ = load_snapshot(path, model)
        except LilyError as error:
            logger.warning("a file of the prefix cache cannot be used: %s", error)
            self._forget(name)
            return None
        if not snapshot.has_logits or not np.array_equal(snapshot.tokens, ids[: len(snapshot.tokens)]):
            self._forget(name)
            return None
        with contextlib.suppress(OSError):
            path.touch()  # the order of use, for the next process
        return snapshot

    def store(self, snapshot: _core.Snapshot) -> None:
        """Write a snapshot with logits, and delete the least recently used files above the limit."""
        model = self._model()
        if model is None or not snapshot.has_logits or snapshot.bytes > self._limit:
            return
        ids = snapshot.tokens
        name = self._name(ids)
        with self._lock:
            if name in self._files:
                return
        path = self._directory / name
        try:
            save_snapshot(path, model, snapshot, 0)
            size = path.stat().st_size
        except OSError as error:
            logger.warning("the prefix cache cannot write to its directory: %s", error)
            return
        with self._lock:
            self._register(name, ids, path, size)
            while self._bytes > self._limit:
                self._forget(next(iter(self._files)))

    def _find(self, ids: Ids, beyond: int) -> Node[str] | None:
        node = next((node for node in reversed(self._tree.match(ids).path) if node.entry is not None), None)
        return node if node is not None and node.length >= beyond + _MIN_GAIN_TOKENS else None

    def _register(self, name: str, ids: Ids, path: Path, size: int) -> None:
        if name in self._files:
            return
        node = self._tree.insert(ids)
        node.entry = name
        self._files[name] = _File(path, size, node)
        self._bytes += size

    def _forget(self, name: str) -> None:
        with self._lock:
            file = self._files.pop(name, None)
            if file is None:
                return
            self._bytes -= file.bytes
            file.node.entry = None
            self._tree.prune(file.node)
        with contextlib.suppress(OSError):
            file.path.unlink(missing_ok=True)

    def _scan(self, model: Model) -> None:
        """Take over the files that an earlier process left; those of other weights stay as they are."""
        found = []
        for path in self._directory.iterdir():
            with contextlib.suppress(OSError):
                status = path.stat()
                if path.suffix == _SUFFIX and not path.name.startswith("."):
                    found.append((status.st_mtime, status.st_size, path))
        for _, size, path in sorted(found):
            try:
                ids = read_tokens(path, model)
            except CheckpointError as error:
                logger.debug("not a file of this model's prefix cache: %s", error)
                continue
            if len(ids) and path.name == self._name(ids):
                self._register(path.name, ids, path, size)

    def _name(self, ids: Ids) -> str:
        model = self._model()
        kind = "" if model is None else f"{model._fingerprint} {model._arithmetic}"
        return hashlib.sha256(kind.encode() + ids.tobytes()).hexdigest()[:40] + _SUFFIX
