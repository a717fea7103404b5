"""The snapshots that a prefix cache holds: what starts from them, which go first, and which are to be written."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from lily import _core
from lily.cache.disk_writer import DiskWriter
from lily.cache.radix_tree import Match, Node, RadixTree
from lily.cache.statistics import CacheStats
from lily.errors import CheckpointError, NonFiniteError

if TYPE_CHECKING:
    from lily.cache.disk_tier import DiskTier
    from lily.identity.fingerprint import WeightsIdentity

__all__ = ["Known", "SnapshotStore"]

Ids = npt.NDArray[np.int32]

# Snapshots that lead only to one longer snapshot: of each sequence, only the latest and no large ones are written.
_LATEST = 4
_SMALL_SHARE = 32  # of the directory's limit
# Share of the limit for snapshots that were dropped but are still to be written.
_DROPPED_SHARE = 4
# Weights up to this many bytes are hashed during loading, larger ones in the background.
_QUICK_HASH_BYTES = 64 << 20


@dataclass(frozen=True)
class Known:
    """What is known of a prompt: how many leading ids, how many of them need no computing, and the ids behind them."""

    matched: int
    cached: int
    continuation: Ids


@dataclass(frozen=True)
class _Entry:
    """One snapshot and its place in the tree.

    Nodes refer to entries by key: nothing that holds memory is part of a reference cycle, so memory is freed with the
    entry and not at the next garbage collection.
    """

    snapshot: _core.Snapshot
    node: Node[int]


class SnapshotStore:
    """Behind a `PrefixCache`: its entries in memory, and the directory that they are written to. Thread-safe."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._lock = threading.RLock()
        self._tree: RadixTree[int] = RadixTree()
        self._entries: OrderedDict[int, _Entry] = OrderedDict()  # by key, least recently used first
        self._next_key = 0
        self._ledger = _core.MemoryLedger()
        self._disk: DiskTier | None = None
        self._writer: DiskWriter | None = None
        self._writes = False  # whether there is a writer thread to take what waits
        self._parting: set[int] = set()  # keys of entries that several sequences continue, held or not
        self._waiting: set[int] = set()  # keys of entries that are to be written
        self._written: set[int] = set()
        self._dropped: deque[_core.Snapshot] = deque()  # to be written, though no longer held
        self._closed = False
        self._hits = self._misses = self._cached_tokens = self._computed_tokens = self._evictions = 0

    @property
    def enabled(self) -> bool:
        """Whether anything is kept."""
        return self._limit > 0

    def __len__(self) -> int:
        return len(self._entries)

    # -- prompts ---------------------------------------------------------------------------------------------------

    def look_up(self, ids: Ids, most: int) -> Known:
        """What is known of a prompt, with at most so many ids behind what is known; nothing counts as used."""
        with self._lock:
            match = self._tree.match(ids)
            usable = self._usable(match, len(ids))
            cached = 0 if usable is None else usable.length
            continuation = self._tree.stored_after(match, most)
        if self._disk is not None:
            cached = max(cached, self._disk.reach(ids, cached))
        return Known(max(match.length, cached), cached, continuation)

    def find(self, ids: Ids) -> tuple[_core.Snapshot | None, int]:
        """(the snapshot at the longest usable prefix of `ids`, number of leading ids that are known)."""
        snapshot, cached = None, 0
        if self._writer is not None:
            self._writer.postpone()
        with self._lock:
            match = self._tree.match(ids)
            usable = self._usable(match, len(ids))
            if usable is not None and usable.entry is not None:
                self._refresh(match, usable)
                snapshot, cached = self._entries[usable.entry].snapshot, usable.length
                if self._writes and usable.entry not in self._written:
                    self._waiting.add(usable.entry)
        known = match.length
        if self._disk is not None:
            stored = self._disk.load(ids, cached)
            known = max(known, self._disk.known(ids))
            if stored is not None:
                self.add(stored)
                return stored, known
            if snapshot is not None:
                self._disk.note_use(ids[:cached])
        return snapshot, known

    def count(self, cached: int, computed: int) -> None:
        """Note a prompt and its tokens."""
        with self._lock:
            self._hits += cached > 0
            self._misses += cached == 0
            self._cached_tokens += cached
            self._computed_tokens += computed

    def add(self, snapshot: _core.Snapshot) -> None:
        """Keep a snapshot, and let the least recently used ones go; errors as for `PrefixCache.insert`."""
        ids = snapshot.tokens
        if not self.enabled or len(ids) == 0:
            return
        # States behind finite logits are finite.
        place = None if snapshot.has_logits else snapshot.non_finite()
        if place is not None:
            raise NonFiniteError(f"the state is not finite ({place}); reset() the session and prefill its tokens again")
        with self._lock:
            if self._closed:
                return
            node = self._tree.insert(ids)
            if node.entry is not None:
                if self._entries[node.entry].snapshot.has_logits or not snapshot.has_logits:
                    self._entries.move_to_end(node.entry)
                    return
                self._drop(node.entry)
            node.entry = self._next_key
            self._next_key += 1
            self._entries[node.entry] = _Entry(snapshot, node)
            self._ledger.add(snapshot)
            for one in (node, self._tree.entry_above(node)):
                if one is not None and one.entry is not None and self._tree.continuations(one) > 1:
                    self._parting.add(one.entry)
            if self._writes:
                self._waiting.add(node.entry)
            while self._ledger.bytes > self._limit and self._entries:
                key, oldest = next(iter(self._entries.items()))
                if key in self._waiting and self._is_worth_a_file(oldest):
                    self._keep_until_written(oldest.snapshot)
                self._tree.prune(self._drop(key))
                self._evictions += 1
            urgent = bool(self._dropped)
        if self._writer is not None:
            self._writer.notify(urgent=urgent)

    # -- sizes and the end -----------------------------------------------------------------------------------------

    def stats(self) -> CacheStats:
        """Counters and sizes now."""
        with self._lock:
            return CacheStats(
                snapshots=len(self._entries),
                bytes=self._ledger.bytes,
                limit_bytes=self._limit,
                hits=self._hits,
                misses=self._misses,
                cached_tokens=self._cached_tokens,
                computed_tokens=self._computed_tokens,
                evictions=self._evictions,
                files=0 if self._disk is None else self._disk.files,
                file_bytes=0 if self._disk is None else self._disk.bytes,
            )

    def clear(self) -> None:
        """Drop everything held in memory; files and counters stay."""
        with self._lock:
            self._tree = RadixTree()
            self._entries.clear()
            self._ledger = _core.MemoryLedger()
            self._parting.clear()
            self._waiting.clear()
            self._written.clear()
            self._dropped.clear()

    def close(self) -> None:
        """Drop everything and keep nothing from now on, whoever is about to insert something."""
        with self._lock:
            self._closed = True
            self.clear()

    # -- the directory ---------------------------------------------------------------------------------------------

    def attach(self, disk: DiskTier, identity: WeightsIdentity) -> None:
        """Write to a directory from now on, and read what is there."""
        if identity.recorded() is not None or identity.total_bytes <= _QUICK_HASH_BYTES:
            with contextlib.suppress(CheckpointError):  # the writer meets it as well, and tells
                identity.get()
                disk.open()
        self._disk, self._writes = disk, True
        self._writer = DiskWriter(self, disk, identity)

    def flush(self, seconds: float | None) -> bool:
        """Wait until everything that is worth a file is written; see `PrefixCache.flush`."""
        return self._writer is not None and self._writer.flush(seconds)

    def close_files(self) -> None:
        """Before the model is closed: write what is left, as far as a few seconds allow."""
        if self._writer is not None:
            self._writer.close()

    def stop_writing(self) -> None:
        """The writer's thread has ended: what waits for it would wait for ever, and hold memory beyond the limit."""
        with self._lock:
            self._writes = False
            self._waiting.clear()
            self._dropped.clear()

    def unwritten(self) -> _core.Snapshot | None:
        """The next snapshot to write, the shortest first; None where there is none."""
        with self._lock:
            if self._dropped:
                return self._dropped.popleft()
            while self._waiting:
                key = min(self._waiting, key=lambda key: self._entries[key].node.length)
                self._waiting.discard(key)
                entry = self._entries[key]
                if self._is_worth_a_file(entry):
                    self._written.add(key)
                    return entry.snapshot
        return None

    def retry(self, snapshot: _core.Snapshot) -> None:
        """It could not be written."""
        with self._lock:
            self._dropped.appendleft(snapshot)

    def discard(self, snapshot: _core.Snapshot) -> None:
        """Forget a snapshot that turned out to be worth nothing."""
        with self._lock:
            for key, entry in self._entries.items():
                if entry.snapshot is snapshot:
                    self._tree.prune(self._drop(key))
                    return

    def _keep_until_written(self, snapshot: _core.Snapshot) -> None:
        held = sum(one.own_bytes for one in self._dropped)
        if not self._dropped or held + snapshot.bytes <= self._limit // _DROPPED_SHARE:
            self._dropped.append(snapshot)

    def _is_worth_a_file(self, entry: _Entry) -> bool:
        if self._disk is None or not entry.snapshot.has_logits:
            return False
        node, above = entry.node, self._tree.entry_above(entry.node)
        if above is None or node.entry in self._parting or self._tree.continuations(node) != 1:
            return True
        if entry.snapshot.bytes > self._disk.limit_bytes // _SMALL_SHARE:
            return False
        for _ in range(_LATEST):
            below = self._tree.entry_below(node)
            if below is None:
                return True
            node = below
        return False

    # -- entries and nodes -----------------------------------------------------------------------------------------

    def _drop(self, key: int) -> Node[int]:
        entry = self._entries.pop(key)
        for keys in (self._parting, self._waiting, self._written):
            keys.discard(key)
        self._ledger.remove(entry.snapshot)
        entry.node.entry = None
        return entry.node

    def _usable(self, match: Match[int], total: int) -> Node[int] | None:
        # The whole prompt can only come from a snapshot that has its logits.
        for node in reversed(match.path):
            if node.entry is not None and (node.length < total or self._entries[node.entry].snapshot.has_logits):
                return node
        return None

    def _refresh(self, match: Match[int], used: Node[int]) -> None:
        known = [node for node in match.path if node.entry is not None]
        for index, node in enumerate(known):
            if node.entry is not None and (index == 0 or node is used or node.entry in self._parting):
                self._entries.move_to_end(node.entry)
