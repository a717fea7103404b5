"""Lily, the reference and mlx-lm over lily-tiny's held-out text, teacher-forced: a report of their distances.

    python tests/oracles/heldout.py [MODEL] [--backend NAME] [--off MECHANISM ...] [--documents N]

MODEL is a copy of lily-tiny in any format that Lily reads; the bundled one if left out. --off switches mechanisms of
the GPU engine off ("all": every one). The values of the
reference and of mlx-lm are stored ones; golden/make_golden.py makes them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
sys.path.insert(0, str(Path(__file__).parents[1]))

from golden.make_golden import Golden, load
from lily.model.gpu_options import GpuOptions
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


def lily_run(source: str | Path, documents: Sequence[Golden], **options: Any) -> list[Golden]:
    """Lily over the texts of the documents; `options` are of `lily.Model.load`."""
    with lily_model(source, **options) as model:
        return [Golden(document.ids, *score(model, document.ids)) for document in documents]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="lily-tiny")
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--off", nargs="*", default=[])
    parser.add_argument("--documents", type=int, help="the first so many only")
    given = parser.parse_args()
    options: dict[str, Any] = {"backend": given.backend}
    if given.off:
        options["options"] = GpuOptions().without(*given.off)
    reference, mlx = load("reference"), load("mlx")
    reference = reference[: given.documents]
    lily = lily_run(given.model, reference, **options)
    few = min(len(mlx), len(lily))
    mlx = mlx[:few]
    print(f"lily, whole text, from the reference:      {between(lily, reference)}")
    print(f"lily, {few} documents, from the reference:    {between(lily[:few], reference[:few])}")
    print(f"mlx-lm, {few} documents, from the reference:  {between(mlx, reference[:few])}")
    print(f"lily, {few} documents, from mlx-lm:           {between(lily[:few], mlx)}")


if __name__ == "__main__":
    main()
