"""Runs Lily for a comparison: the one place that knows how these tests load it and ask it for logits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

THREADS = 2


@contextmanager
def lily_model(source: str | Path, threads: int = THREADS, **options: Any) -> Iterator[Any]:
    """A loaded model, closed at the end."""
    import lily

    model = lily.Model.load(str(source), threads=threads, **{"backend": "cpu", **options})
    try:
        yield model
    finally:
        model.close()


def logits_after(model: Any, prompt: Sequence[int], following: Sequence[int] = ()) -> NDArray[np.float32]:
    """Logits after the prompt and after each of the following tokens, which are decoded one by one.

    Returns [1 + len(following), vocab_size].
    """
    with model.session() as session:
        rows = [np.array(session.prefill([int(token) for token in prompt]))]
        rows.extend(np.array(session.decode(int(token))) for token in following)
    return np.stack(rows)


def score(model: Any, ids: Sequence[int]) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Log-probabilities of ids[1:] and the most likely token at each of those positions."""
    with model.session() as session:
        log_probabilities, chosen = session.score([int(token) for token in ids], return_argmax=True)
    return np.asarray(log_probabilities), np.asarray(chosen)
