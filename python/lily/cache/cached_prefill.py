"""Prefill of a whole prompt from the longest known prefix, with snapshots on the way."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from lily import _core
from lily.cache.snapshot_store import SnapshotStore
from lily.checks.arguments import as_items
from lily.checks.quoting import quoted
from lily.errors import InvalidArgumentError, LilyError, NonFiniteError
from lily.session import Progress, Session

if TYPE_CHECKING:
    from lily.model import Model

__all__ = ["as_positions", "cached_prefill"]

# Tokens. A prompt that diverges from a known one this far after the last snapshot gets a snapshot there, for others
# that do the same.
_MIN_BRANCH_TOKENS = 32


def cached_prefill(
    model: Model,
    session: Session,
    ids: npt.NDArray[np.int32],
    positions: list[int],
    interval: int,
    progress: Progress | None,
) -> None:
    """Bring an empty session to the end of `ids`, with logits. See `Model.cached_session`."""
    store = model.cache.store
    _check(model, ids)
    snapshot, known = store.find(ids)
    try:
        _prefill_from(session, store, ids, snapshot, known, positions, interval, progress)
    except NonFiniteError:
        if snapshot is None:
            raise
        store.discard(snapshot)  # it may be the cause
        session.reset()
        _prefill_from(session, store, ids, None, known, positions, interval, progress)


def _prefill_from(
    session: Session,
    store: SnapshotStore,
    ids: npt.NDArray[np.int32],
    snapshot: _core.Snapshot | None,
    known: int,
    positions: list[int],
    interval: int,
    progress: Progress | None,
) -> None:
    """Compute what follows a snapshot; `known` leading ids were seen before, with or without a snapshot."""
    total, cached = len(ids), 0
    if snapshot is not None:
        snapshot.restore_into(session.core)
        cached = session.position
    session.cached_tokens = cached
    if progress is not None:
        progress(cached, total)
    if known - cached >= _MIN_BRANCH_TOKENS:
        positions = [*positions, known]
    borders = _borders(cached, total, positions, interval) if store.enabled else [total]
    try:
        _compute(session, store, ids, borders, progress)
    except BaseException:
        _keep_progress(session, store)
        raise
    finally:
        if not session.core.closed:
            store.count(cached, max(0, session.position - cached))


def as_positions(positions: Iterable[int], total: int) -> list[int]:
    """`positions` as a list; refuses anything but positions within a prompt of `total` tokens."""
    try:
        found = [operator.index(at) for at in as_items("snapshot_at", positions, "a collection of positions")]
    except TypeError:
        raise InvalidArgumentError(f"snapshot_at must be a collection of positions, not {quoted(positions)}") from None
    for position in found:
        if not 0 <= position <= total:
            raise InvalidArgumentError(
                f"snapshot_at: {quoted(position)} is not a position within the prompt's {total} tokens"
            )
    return found


def _check(model: Model, ids: npt.NDArray[np.int32]) -> None:
    # The whole prompt is checked before any of it is computed.
    vocab_size = model.config.vocab_size
    wrong = np.flatnonzero((ids < 0) | (ids >= vocab_size))
    if wrong.size:
        index = int(wrong[0])
        raise InvalidArgumentError(
            f"token id {ids[index]} at index {index} is outside the vocabulary [0, {vocab_size})"
        )


def _borders(cached: int, total: int, positions: Iterable[int], interval: int) -> list[int]:
    """Ends of the parts to compute, each followed by a snapshot. Results do not depend on how a prompt is split."""
    borders = {position for position in positions if cached < position < total}
    if interval:
        borders.update(range((cached // interval + 1) * interval, total, interval))
    if cached < total:
        borders.add(total)
    return sorted(borders)


def _compute(
    session: Session, store: SnapshotStore, ids: npt.NDArray[np.int32], borders: list[int], progress: Progress | None
) -> None:
    total = len(ids)
    begin = session.position
    for end in borders:
        observe = None if progress is None else _shifted(progress, begin, total)
        session.prefill(ids[begin:end], progress=observe)
        if store.enabled:
            store.add(_core.Snapshot.take(session.core, False))
        begin = end


def _shifted(progress: Progress, begin: int, total: int) -> Progress:
    return lambda done, _: progress(begin + done, total)


def _keep_progress(session: Session, store: SnapshotStore) -> None:
    """After an interruption: keep what was computed, so that a second try begins there."""
    try:
        if session.position > session.cached_tokens:
            store.add(_core.Snapshot.take(session.core, False))
    except LilyError:
        return  # the state is lost with the failure that is being reported
