"""Two backends of Lily over the same random tokens, teacher-forced: a report of their distances.

    python tests/oracles/backends.py MODEL [--backend NAME] [--other NAME] [--off MECHANISM ...] [--positions N]

For models too large for the reference, such as the whole one of tests/support/synthetic.py. Every position is scored
twice, as part of a prompt and as a step of decoding. --off switches mechanisms of the other backend off ("all": every
one), so that a GPU can be compared with itself: how far rounding alone leads.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
sys.path.insert(0, str(Path(__file__).parents[1]))

from lily.model.gpu_options import GpuOptions
from oracles.compare import distance, relative_logit_error
from oracles.under_test import lily_model, logits_after, score

PROMPT = 64  # tokens before the first position


def log_probabilities(logits: NDArray[np.float32], ids: NDArray[np.int32]) -> NDArray[np.float64]:
    """Of the token that follows, at each row of logits."""
    wide = logits.astype(np.float64)
    peak = wide.max(-1)
    return wide[np.arange(len(ids)), ids] - peak - np.log(np.exp(wide - peak[:, None]).sum(-1))


def run(source: str, positions: int, **options: Any) -> dict[str, Any]:
    """Scores of both kinds, and the logits of every decoding step; `options` are of `lily.Model.load`."""
    with lily_model(source, **options) as model:
        vocab_size = model.config.vocab_size
        ids = np.random.default_rng(7).integers(0, vocab_size, PROMPT + positions, dtype=np.int32)
        prompt = tuple(part[PROMPT - 1 :] for part in score(model, ids))
        logits = logits_after(model, ids[:PROMPT], ids[PROMPT:-1])
    step = log_probabilities(logits, ids[PROMPT:]), logits.argmax(-1).astype(np.int32)
    return {"as a prompt": prompt, "step by step": step, "logits": logits}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--other", default="cpu", help="the backend to compare with")
    parser.add_argument("--off", nargs="*", default=[], help="mechanisms of the other one to switch off")
    parser.add_argument("--positions", type=int, default=192)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    switches: dict[str, Any] = {}
    if given.off:
        switches["options"] = GpuOptions().without(*given.off)
    one = run(given.model, given.positions, threads=given.threads, backend=given.backend)
    other = run(given.model, given.positions, threads=given.threads, backend=given.other, **switches)
    for kind in ("as a prompt", "step by step"):
        print(f"{given.backend}, {kind}, from {given.other}: {distance(*one[kind], *other[kind])}")
    print(f"largest relative error of a step's logits: {relative_logit_error(one['logits'], other['logits']):.5f}")
    best = np.sort(other["logits"], axis=-1)[:, -2:]
    changed = one["step by step"][1] != other["step by step"][1]
    leads = best[:, 1] - best[:, 0]
    print(f"median lead of the first choice over the second: {np.median(leads):.3f}", end="")
    print(f", where the choices differ: {np.median(leads[changed]):.3f}" if changed.any() else "")


if __name__ == "__main__":
    main()
