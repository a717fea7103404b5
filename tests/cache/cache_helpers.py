"""Cold runs to compare with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lily import Model, Sampling, Session

Ids = Sequence[int] | npt.NDArray[np.integer]
GREEDY = Sampling.greedy()


def greedy(session: Session, count: int) -> list[int]:
    """The next `count` greedy tokens."""
    return list(session.generate(count, sampling=GREEDY, stop_tokens=()))


def cold_greedy(model: Model, ids: Ids, count: int) -> list[int]:
    """The greedy continuation of `ids` in a session that has seen nothing else."""
    with model.prefill(ids) as session:
        return greedy(session, count)


def assert_same_logits(session: Session, other: Session) -> None:
    """Bit for bit."""
    assert session.logits is not None and other.logits is not None
    np.testing.assert_array_equal(session.logits.view(np.uint32), other.logits.view(np.uint32))


def assert_like_cold(model: Model, session: Session, count: int = 8) -> None:
    """Logits and greedy continuation of a session are those of a cold run over its tokens; the session goes on."""
    with model.prefill(session.tokens) as cold:
        assert_same_logits(session, cold)
        assert greedy(session, count) == greedy(cold, count)


def session_files(directory: Path) -> list[Path]:
    """The cache's complete files in a directory."""
    return sorted(directory.glob("[0-9a-f]*.lily-session"))
