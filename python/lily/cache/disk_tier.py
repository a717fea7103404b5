"""The prefix cache's second tier: session files in a directory, which survive restarts and are shared by processes."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from lily import _core
from lily.cache.own_files import SUFFIX, CacheDirectory
from lily.cache.radix_tree import Node, RadixTree
from lily.errors import CheckpointError, ConfigError, LilyError, NonFiniteError
from lily.files.file_digest import FileStamp
from lily.session.session_file import load_snapshot, read_tokens, save_snapshot, saved_size
from lily.session.session_header import DamagedSessionError

if TYPE_CHECKING:
    from lily.model import Model

__all__ = ["DiskTier"]

logger = logging.getLogger("lily")

# Computing shorter prompts is as fast as finding and reading a file.
_MIN_TOKENS = 64
# Writing and reading this many bytes takes about as long as computing a token; a file must save more tokens than that.
_BYTES_OF_A_TOKEN = 2 << 20
# A change of the directory this soon after the latest look may not have changed its time.
_TICK_NS = 2_500_000_000
# A directory with so many other files that listing takes longer is listed more rarely.
_SLOW_NS = 5_000_000
_SLOW_SHARE = 20
# Each doubling of the prompts that begin with a file counts like a use this much later.
_BRANCH_NS = 3600 * 1_000_000_000

Ids = npt.NDArray[np.int32]


@dataclass
class _File:
    name: str
    stamp: FileStamp
    used_ns: int
    node: Node[str] | None  # None: for other weights, or longer than this model's context
    branches: int = 0  # the most prompts seen to start from it; they may be removed before it


class DiskTier:
    """Session files of prompts, found by their token ids; the least useful ones are removed first. Thread-safe.

    The limit applies to all cache files in the directory, including those of other processes and models. A disk failure
    never fails a request: it is logged, and the prompt is computed.
    """

    def __init__(self, model: Model, directory: Path, limit_bytes: int) -> None:
        self._model = weakref.ref(model)
        self._directory = CacheDirectory(directory)
        self._limit = limit_bytes
        self._lock = threading.RLock()
        self._tree: RadixTree[str] = RadixTree()
        self._files: dict[str, _File] = {}
        self._foreign: dict[str, FileStamp] = {}  # files with a matching name that are not Lily's
        self._kind = b""  # files that this model can read; empty until the weights' identity is known
        self._listed: tuple[int, int] | None = None
        self._listed_ns = 0
        self._next_look_ns = 0
        self._failing = False
        try:
            self._directory.make()
        except OSError as error:
            raise ConfigError(
                f"prefix_cache_dir: {directory} cannot be used as a directory ({error.strerror})"
            ) from error

    def open(self) -> None:
        """Start using the directory, once the model's identity is known; before, no file is found or written."""
        model = self._model()
        if model is not None:
            with self._lock:
                self._kind = f"{model.fingerprint} {model.arithmetic}".encode()
                self._refresh()

    @property
    def files(self) -> int:
        """Files of this model's weights in the directory."""
        with self._lock:
            return sum(file.node is not None for file in self._files.values())

    @property
    def bytes(self) -> int:
        """Their bytes."""
        with self._lock:
            return sum(file.stamp.size for file in self._files.values() if file.node is not None)

    @property
    def limit_bytes(self) -> int:
        """Maximum bytes of all cache files in the directory."""
        return self._limit

    # -- reading ---------------------------------------------------------------------------------------------------

    def reach(self, ids: Ids, beyond: int) -> int:
        """Number of leading ids that `load` would restore; 0 for none."""
        with self._lock:
            self._refresh()
            node = self._find(ids, beyond)
            return 0 if node is None else node.length

    def known(self, ids: Ids) -> int:
        """Number of leading ids with which some file's sequence begins, whether or not a file ends there."""
        with self._lock:
            return self._tree.match(ids).length

    def load(self, ids: Ids, beyond: int) -> _core.Snapshot | None:
        """The snapshot of the longest prefix of `ids`, if it saves enough compared with one of `beyond` tokens."""
        model = self._model()
        while model is not None:
            with self._lock:
                self._refresh()
                node = self._find(ids, beyond)
                file = None if node is None or node.entry is None else self._files[node.entry]
            if file is None:
                return None
            try:
                snapshot, _ = load_snapshot(self._directory.path / file.name, model)
            except CheckpointError as error:
                self._give_up(file, error, damaged=isinstance(error, DamagedSessionError))
                continue
            except NonFiniteError as error:
                self._give_up(file, error, damaged=True)
                continue
            except LilyError as error:  # the file is good, but the model has no room for it or is closed
                logger.warning("a file of the prefix cache cannot be used now: %s", error)
                return None
            if not snapshot.has_logits or not np.array_equal(snapshot.tokens, ids[: len(snapshot.tokens)]):
                self._give_up(file, CheckpointError(f"{file.name}: it is not a prompt of this cache"), damaged=False)
                continue
            self.note_use(ids[: len(snapshot.tokens)])
            return snapshot
        return None

    def note_use(self, ids: Ids) -> None:
        """A prompt started from `ids`: refresh the file at their end, and earlier ones where prompts diverge."""
        now = time.time_ns()
        with self._lock:
            known = [node for node in self._tree.match(ids).path if node.entry is not None]
            for index, node in enumerate(known):
                if index in (0, len(known) - 1) or self._tree.continuations(node) > 1:
                    self._touch(self._files[str(node.entry)], now)

    def _find(self, ids: Ids, beyond: int) -> Node[str] | None:
        node = next((node for node in reversed(self._tree.match(ids).path) if node.entry is not None), None)
        if node is None or node.length < max(_MIN_TOKENS, beyond + 1):
            return None
        size = self._files[str(node.entry)].stamp.size
        return node if node.length - beyond >= size // _BYTES_OF_A_TOKEN else None

    def _touch(self, file: _File, now: int) -> None:
        file.used_ns = now
        with contextlib.suppress(OSError):  # for other processes, and the next one
            os.utime(self._directory.path / file.name, ns=(now, now), follow_symlinks=False)

    def _give_up(self, file: _File, error: Exception, *, damaged: bool) -> None:
        logger.warning("a file of the prefix cache cannot be used: %s", error)
        with self._lock:
            self._unlist(file)
            if damaged:
                self._directory.remove(file.name, file.stamp)
                self._files.pop(file.name, None)

    # -- writing, from one thread ----------------------------------------------------------------------------------

    def store(self, snapshot: _core.Snapshot, check: Callable[[], None]) -> bool:
        """Write a snapshot with logits, unless an existing file serves as well.

        Parameters
        ----------
        snapshot
            What to write.
        check
            Called now and then; an exception ends the writing.

        Returns
        -------
        bool
            False if the directory failed, and the caller may try again.

        Raises
        ------
        NonFiniteError
            The snapshot contains values that are not finite.
        """
        model = self._model()
        if model is None or not snapshot.has_logits or not self._kind:
            return True
        ids = snapshot.tokens
        try:
            with self._lock:
                self._refresh()
                size = saved_size(model, snapshot)
                wanted = size <= self._limit and self._is_gain(ids, size)
            if wanted:
                with self._directory.locked(check):
                    self._write(model, snapshot, ids, size, check)
        except OSError as error:
            if not self._failing:
                logger.warning("the prefix cache cannot write to its directory: %s", error)
            self._failing = True
            return False
        self._failing = False
        return True

    def trim(self, check: Callable[[], None]) -> None:
        """Remove what killed processes left, and what exceeds the limit; with a limit of 0, change nothing."""
        if self._limit == 0:
            return
        with contextlib.suppress(OSError), self._directory.locked(check):
            self._make_room(0)

    def _is_gain(self, ids: Ids, size: int) -> bool:
        known = [node for node in self._tree.match(ids).path if node.entry is not None]
        before = known[-1].length if known else 0
        if before == len(ids):
            return False  # it is there already
        return len(ids) - before >= size // _BYTES_OF_A_TOKEN

    def _write(self, model: Model, snapshot: _core.Snapshot, ids: Ids, size: int, check: Callable[[], None]) -> None:
        name = self._name(ids)
        if not self._make_room(size):
            return
        with self._lock:
            if name in self._files:  # another process has written it meanwhile
                return
        path = self._directory.path / name
        if os.path.lexists(path):
            return  # not ours
        save_snapshot(path, model, snapshot, 0, durable=False, check=check)
        with self._lock:
            self._list(name, FileStamp.of(path.stat()), ids)
            self._files[name].used_ns = time.time_ns()

    def _make_room(self, size: int) -> bool:
        """Remove the least useful files until there is room for one of `size`. The directory is locked."""
        self._directory.remove_abandoned()
        victims = []
        with self._lock:
            self._refresh(force=True)
            room = self._limit - size - self._directory.partial_bytes()
            room -= sum(file.stamp.size for file in self._files.values())
            while room < 0 and self._files:
                file = min(self._files.values(), key=self._usefulness)
                self._unlist(file)
                del self._files[file.name]
                victims.append(file)
                room += file.stamp.size
        for file in victims:  # slow for large files: no request waits for it
            self._directory.remove(file.name, file.stamp)
        return room >= 0

    def _usefulness(self, file: _File) -> float:
        """Later uses count more, and so do places where many prompts diverge; others on the way count less."""
        if file.node is None:
            return file.used_ns
        branches = file.branches = max(file.branches, self._tree.continuations(file.node))
        if branches == 1:
            return file.used_ns - (_BRANCH_NS if self._tree.entry_above(file.node) is not None else 0)
        return file.used_ns + (_BRANCH_NS * math.log2(branches) if branches else 0)

    # -- what is in the directory ----------------------------------------------------------------------------------

    def _refresh(self, *, force: bool = False) -> None:
        """Find out what other processes wrote and removed. If nothing changed, this only reads the directory's time."""
        if not self._kind:
            return
        began = time.monotonic_ns()
        if not force and began < self._next_look_ns:
            return
        self._look(force)
        took = time.monotonic_ns() - began
        self._next_look_ns = began + (_SLOW_SHARE * took if took > _SLOW_NS else 0)

    def _look(self, force: bool) -> None:
        try:
            stamp = self._directory.stamp()
            if not force and stamp == self._listed and stamp[1] < self._listed_ns - _TICK_NS:
                return
            self._listed, self._listed_ns = stamp, time.time_ns()
            complete = self._directory.complete()
        except OSError:
            self._listed, complete = None, {}
        for name in self._files.keys() - complete.keys():
            self._unlist(self._files.pop(name))
        for name, found in complete.items():
            if self._foreign.get(name) == found:
                continue
            file = self._files.get(name)
            if file is not None and (file.stamp.inode, file.stamp.size) == (found.inode, found.size):
                file.stamp = found
                if found.mtime_ns == _past(found.mtime_ns):
                    file.used_ns = max(file.used_ns, found.mtime_ns)
                continue
            if file is not None:
                self._unlist(self._files.pop(name))
            self._examine(name, found)

    def _examine(self, name: str, stamp: FileStamp) -> None:
        model = self._model()
        if model is None:
            return
        try:
            ids = read_tokens(self._directory.path / name, model)
        except LilyError as error:
            logger.debug("not a file of this model's prefix cache: %s", error)
            if self._directory.is_own(name):
                self._files[name] = _File(name, stamp, _past(stamp.mtime_ns), None)
            else:
                self._foreign[name] = stamp
            return
        if len(ids) and name == self._name(ids):
            self._list(name, stamp, ids)

    def _list(self, name: str, stamp: FileStamp, ids: Ids) -> None:
        node = self._tree.insert(ids)
        node.entry = name
        self._files[name] = _File(name, stamp, _past(stamp.mtime_ns), node)

    def _unlist(self, file: _File) -> None:
        node, file.node = file.node, None
        if node is not None and node.entry == file.name:
            node.entry = None
            self._tree.prune(node)

    def _name(self, ids: Ids) -> str:
        return hashlib.sha256(self._kind + ids.tobytes()).hexdigest()[:40] + SUFFIX


def _past(time_ns: int) -> int:
    """A file's time, but at most now: a file from a fast clock would stay forever."""
    return min(time_ns, time.time_ns())
