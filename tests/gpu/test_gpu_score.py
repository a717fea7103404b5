"""Scores of a text on a GPU engine: every position has its own logits, whatever the blocks and chunks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import lily
from engine_helpers import random_ids

IDS = random_ids(78, seed=81)
TARGETS = random_ids(77, seed=82)
# Around the blocks of 32 rows whose logits are held at once, and at the ends.
PLACES = (0, 1, 30, 31, 32, 33, 63, 64, 65, 76)


@pytest.mark.parametrize("chunk", [0, 40])
def test_every_position_has_its_own_score(checkpoint: Path, model: lily.Model, chunk: int) -> None:
    options = {"prefill_chunk": chunk} if chunk else {}
    with lily.Model.load(checkpoint, backend="sim", **options) as scoring, scoring.session() as session:
        scores, best = session.score(IDS, targets=TARGETS, return_argmax=True)
        assert session.position == 0
    for place in PLACES:
        with model.session() as session:
            logits = np.array(session.prefill(IDS[: place + 1]), np.float64)
        exact = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
        # The rows are rounded to bfloat16 before the head; of chunks that end elsewhere, keys and values are the same.
        error = 2.0**-6 * np.abs(logits).max()
        assert abs(scores[place] - exact[TARGETS[place]]) <= error
        assert logits[best[place]] >= logits.max() - error
    assert len(set(scores.tolist())) > 70
