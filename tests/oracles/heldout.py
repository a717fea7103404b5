"""Lily, the reference and mlx-lm over lily-tiny's held-out text, teacher-forced: a report of their distances.

    python tests/oracles/heldout.py [MODEL]

MODEL is a copy of lily-tiny in any format that Lily reads; the bundled one if left out. The values of the
reference and of mlx-lm are stored ones; golden/make_golden.py makes them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from golden.make_golden import Golden, load
from oracles.compare import Distance, distance
from oracles.under_test import lily_model, score


def between(documents: Sequence[Golden], expected: Sequence[Golden]) -> Distance:
    """The distance of one run over the documents from another."""
    for one, other in zip(documents, expected, strict=True):
        assert np.array_equal(one.ids, other.ids), "the runs are over different texts"
    return distance(
        np.concatenate([document.log_probabilities for document in documents]),
        np.concatenate([document.chosen for document in documents]),
        np.concatenate([document.log_probabilities for document in expected]),
        np.concatenate([document.chosen for document in expected]),
    )


def lily_run(source: str | Path, documents: Sequence[Golden]) -> list[Golden]:
    """Lily over the texts of the documents."""
    with lily_model(source) as model:
        return [Golden(document.ids, *score(model, document.ids)) for document in documents]


def main() -> None:
    source = sys.argv[1] if len(sys.argv) > 1 else "lily-tiny"
    reference, mlx = load("reference"), load("mlx")
    lily = lily_run(source, reference)
    few = len(mlx)
    print(f"lily, whole text, from the reference:      {between(lily, reference)}")
    print(f"lily, {few} documents, from the reference:    {between(lily[:few], reference[:few])}")
    print(f"mlx-lm, {few} documents, from the reference:  {between(mlx, reference[:few])}")
    print(f"lily, {few} documents, from mlx-lm:           {between(lily[:few], mlx)}")


if __name__ == "__main__":
    main()
