"""PrefixCache: snapshots of earlier prompts and answers, found by their token ids; evicts the least recently used."""

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
from lily.cache.explanation import CacheExplanation
from lily.cache.radix_tree import Match, Node, RadixTree
from lily.errors import CheckpointError, InvalidArgumentError, NonFiniteError
from lily.session import Session, Tokens, as_token_ids
from lily.text import Tokenizer

if TYPE_CHECKING:
    from lily.cache.disk_tier import DiskTier
    from lily.fingerprint import WeightsIdentity

__all__ = ["CacheStats", "PrefixCache"]

_TEXT_TOKENS = 24  # shown on each side of a difference
# Snapshots that lead only to one longer snapshot: of each sequence, only the latest and no large ones are written.
_LATEST = 4
_SMALL_SHARE = 32  # of the directory's limit
# Share of the limit for snapshots that were dropped but are still to be written.
_DROPPED_SHARE = 4
# Weights up to this many bytes are hashed during loading, larger ones in the background.
_QUICK_HASH_BYTES = 64 << 20


@dataclass(frozen=True)
class CacheStats:
    """Counters of a prefix cache since it was made."""

    snapshots: int  #: held now
    bytes: int  #: bytes held now, each shared piece counted once
    limit_bytes: int
    hits: int  #: prompts of which at least one token came from the cache
    misses: int
    cached_tokens: int  #: prompt tokens that came from the cache
    computed_tokens: int  #: prompt tokens that were computed
    evictions: int  #: snapshots dropped to stay within the limit
    files: int = 0  #: in ``prefix_cache_dir``
    file_bytes: int = 0


@dataclass(frozen=True)
class _Entry:
    """One snapshot and its place in the tree.

    Nodes refer to entries by key: nothing that holds memory is part of a reference cycle, so memory is freed with the
    entry and not at the next garbage collection.
    """

    snapshot: _core.Snapshot
    node: Node[int]


class PrefixCache:
    """Snapshots of sequences that were computed before. Each model has one, ``model.cache``; thread-safe.

    Recurrent state cannot be rewound, so a prompt can only start from a position where a snapshot was taken:
    `Model.cached_session` takes them at the given positions, at the end of each prompt, where a prompt diverges from a
    known one, and at regular intervals; `insert` keeps the end of a generation.

    Above the limit, the least recently used snapshots are dropped first. Using one also refreshes earlier ones at which
    several sequences branch, and the very first, so that a shared system prompt stays.

    With a directory (``prefix_cache_dir``), a thread writes them there seconds after they were taken, and they are read
    back when a prompt needs them, after a restart and by other processes too. `flush` waits for it.
    """

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
        """Whether the cache keeps anything; false with ``prefix_cache_bytes=0``."""
        return self._limit > 0

    def insert(self, session: Session) -> None:
        """Keep the current sequence of a session, for example at the end of a generation.

        Computes nothing and copies no keys or values. A last token that is not computed yet is left out.

        Raises
        ------
        InvalidArgumentError
            The session belongs to another model.
        BusyError, ClosedError
            The session is in use by another call, or closed.
        NonFiniteError
            Its values are NaN or infinite; no other prompt may start from them.
        """
        if not isinstance(session, Session):
            raise InvalidArgumentError(f"session must be a lily.Session, not a {type(session).__name__}")
        if session.model.cache is not self:
            raise InvalidArgumentError("the session belongs to another model; insert it into that model's cache")
        if self.enabled:
            self._add(_core.Snapshot.take(session.core, False))

    def explain(self, ids: Tokens, tokenizer: Tokenizer | None = None) -> CacheExplanation:
        """Explain where computing `ids` would start: the first difference from the cache, and the nearest snapshot.

        Parameters
        ----------
        ids : sequence of int
            Token ids of a prompt.
        tokenizer : Tokenizer, optional
            Adds the text around the difference.
        """
        array = as_token_ids(ids)
        if tokenizer is not None and not isinstance(tokenizer, Tokenizer):
            raise InvalidArgumentError(f"tokenizer must be a lily.text.Tokenizer, not a {type(tokenizer).__name__}")
        with self._lock:
            match = self._tree.match(array)
            usable = self._usable(match, len(array))
            cached = 0 if usable is None else usable.length
            stored = self._tree.stored_after(match, _TEXT_TOKENS)
        if self._disk is not None:
            cached = max(cached, self._disk.reach(array, cached))
        length = max(match.length, cached)
        differs = length < len(array)

        def text(part: npt.NDArray[np.int32]) -> str | None:
            return None if tokenizer is None else tokenizer.decode(part.tolist())

        return CacheExplanation(
            total_tokens=len(array),
            matched_tokens=length,
            cached_tokens=cached,
            recompute_tokens=len(array) - cached,
            given_token=int(array[length]) if differs else None,
            stored_token=int(stored[0]) if differs and len(stored) else None,
            text_before=text(array[max(0, length - _TEXT_TOKENS) : length]),
            given_text=text(array[length : length + _TEXT_TOKENS]),
            stored_text=text(stored),
        )

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until everything worth a file is in ``prefix_cache_dir``.

        Parameters
        ----------
        timeout : float, optional
            Seconds; None waits as long as necessary, the first time including the hashing of the weights.

        Returns
        -------
        bool
            True if it is; False without a directory, on a timeout, or if the directory failed.
        """
        return self._writer is not None and self._writer.flush(timeout)

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

    def _close(self) -> None:
        """Drop everything and keep nothing from now on, whoever is about to insert something."""
        with self._lock:
            self._closed = True
            self.clear()

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

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        if not self.enabled:
            return "<lily.PrefixCache off>"
        stats = self.stats()
        return (
            f"<lily.PrefixCache snapshots={stats.snapshots} bytes={stats.bytes} limit_bytes={stats.limit_bytes} "
            f"hits={stats.hits} misses={stats.misses}>"
        )

    # -- for cached prefill ----------------------------------------------------------------------------------------

    def _find(self, ids: npt.NDArray[np.int32]) -> tuple[_core.Snapshot | None, int]:
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
                self._add(stored)
                return stored, known
            if snapshot is not None:
                self._disk.note_use(ids[:cached])
        return snapshot, known

    def _count(self, cached: int, computed: int) -> None:
        with self._lock:
            self._hits += cached > 0
            self._misses += cached == 0
            self._cached_tokens += cached
            self._computed_tokens += computed

    def _add(self, snapshot: _core.Snapshot) -> None:
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

    # -- the directory ---------------------------------------------------------------------------------------------

    def attach(self, disk: DiskTier, identity: WeightsIdentity) -> None:
        if identity.recorded() is not None or identity.total_bytes <= _QUICK_HASH_BYTES:
            with contextlib.suppress(CheckpointError):  # the writer meets it as well, and tells
                identity.get()
                disk.open()
        self._disk, self._writes = disk, True
        self._writer = DiskWriter(self, disk, identity)

    def _close_files(self) -> None:
        """Before the model is closed: write what is left, as far as a few seconds allow."""
        if self._writer is not None:
            self._writer.close()

    def _stop_writing(self) -> None:
        """The writer's thread has ended: what waits for it would wait for ever, and hold memory beyond the limit."""
        with self._lock:
            self._writes = False
            self._waiting.clear()
            self._dropped.clear()

    def _unwritten(self) -> _core.Snapshot | None:
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

    def _retry(self, snapshot: _core.Snapshot) -> None:
        """It could not be written."""
        with self._lock:
            self._dropped.appendleft(snapshot)

    def _discard(self, snapshot: _core.Snapshot) -> None:
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
