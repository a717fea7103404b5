"""Makes the golden values of lily-tiny over its held-out text.

    python tests/golden/make_golden.py reference      # about two minutes
    python tests/golden/make_golden.py mlx            # needs mlx-lm; about five minutes on a CPU

reference.npz: the NumPy reference in float64 over every document. mlx.npz: mlx-lm as loaded (bfloat16
activations) over the first documents. Both hold, document after document, the token ids and, for every
position but the last of a document, the log-probability of the next token and the most likely token.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "support"))
sys.path.insert(0, str(HERE.parent))

import lily_tiny  # noqa: E402
import reference  # noqa: E402
from oracles.compare import perplexity  # noqa: E402

MLX_DOCUMENTS = 3
Scorer = Callable[[NDArray[np.int64]], tuple[NDArray, NDArray[np.int32]]]


@dataclass(frozen=True)
class Golden:
    """One stored document. ids [T]; log_probabilities, chosen [T - 1]."""

    ids: NDArray[np.int64]
    log_probabilities: NDArray[np.float32]
    chosen: NDArray[np.int64]


def load(name: str) -> list[Golden]:
    """Reads the documents of a golden file, "reference" or "mlx"."""
    with np.load(HERE / f"{name}.npz") as stored:
        ids, log_probabilities, chosen = stored["ids"], stored["log_probabilities"], stored["chosen"]
        ends = np.cumsum(stored["lengths"])
    result = []
    for index, end in enumerate(ends):
        begin = 0 if index == 0 else ends[index - 1]
        positions = slice(begin - index, end - index - 1)  # one position less than tokens in every document
        result.append(
            Golden(
                ids[begin:end].astype(np.int64),
                log_probabilities[positions],
                chosen[positions].astype(np.int64),
            )
        )
    return result


def make(name: str, score: Scorer, documents: list[NDArray[np.int64]]) -> None:
    """Scores the documents and writes the golden file."""
    log_probabilities, chosen, start = [], [], time.monotonic()
    for index, ids in enumerate(documents):
        document_log_probabilities, document_chosen = score(ids)
        log_probabilities.append(document_log_probabilities)
        chosen.append(document_chosen)
        so_far = perplexity(np.concatenate(log_probabilities))
        print(f"{name}: document {index + 1} of {len(documents)}, perplexity {so_far:.4f}", flush=True)
    np.savez_compressed(
        HERE / f"{name}.npz",
        lengths=np.array([len(ids) for ids in documents], np.uint32),
        ids=np.concatenate(documents).astype(np.uint16),
        log_probabilities=np.concatenate(log_probabilities).astype(np.float32),
        chosen=np.concatenate(chosen).astype(np.uint16),
    )
    print(f"{name}: {time.monotonic() - start:.0f} s")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("which", choices=["reference", "mlx"])
    which = arguments.parse_args().which
    documents = lily_tiny.document_ids()
    if which == "reference":
        make(which, reference.load(lily_tiny.CHECKPOINT).score, documents)
    else:
        from oracles import mlx_oracle

        model = mlx_oracle.load(lily_tiny.CHECKPOINT)
        make(which, lambda ids: mlx_oracle.score(model, ids), documents[:MLX_DOCUMENTS])


if __name__ == "__main__":
    main()
