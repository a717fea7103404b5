"""PrefixCache: snapshots of earlier prompts and answers, found by their token ids; evicts the least recently used."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lily import _core
from lily.cache.explanation import CacheExplanation
from lily.cache.snapshot_store import SnapshotStore
from lily.cache.statistics import CacheStats
from lily.checks.token_ids import Tokens, as_token_ids
from lily.errors import InvalidArgumentError
from lily.session import Session
from lily.text import Tokenizer

__all__ = ["PrefixCache"]

_TEXT_TOKENS = 24  # shown on each side of a difference


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
        self.store = SnapshotStore(limit_bytes)  # for Lily's own modules

    @property
    def enabled(self) -> bool:
        """Whether the cache keeps anything; false with ``prefix_cache_bytes=0``."""
        return self.store.enabled

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
            self.store.add(_core.Snapshot.take(session.core, False))

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
        known = self.store.look_up(array, _TEXT_TOKENS)
        length, cached, stored = known.matched, known.cached, known.continuation
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
        return self.store.flush(timeout)

    def clear(self) -> None:
        """Drop everything held in memory; files and counters stay."""
        self.store.clear()

    def stats(self) -> CacheStats:
        """Counters and sizes now."""
        return self.store.stats()

    def __len__(self) -> int:
        return len(self.store)

    def __repr__(self) -> str:
        if not self.enabled:
            return "<lily.PrefixCache off>"
        stats = self.stats()
        return (
            f"<lily.PrefixCache snapshots={stats.snapshots} bytes={stats.bytes} limit_bytes={stats.limit_bytes} "
            f"hits={stats.hits} misses={stats.misses}>"
        )
