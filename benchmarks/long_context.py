"""Times a long context beside a short one: a prompt in parts, then decoding, on the CPU backend.

    python benchmarks/long_context.py MODEL --json benchmarks/results/long-context-cpu.json

Two sessions of one model take turns in one process: the long one appends the next part of its prompt, the short one
starts over with a prompt of one part. Then both decode a few tokens in turn. On a machine that others use too, trust
the ratio within a turn. Ids are random.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from records import parser, write

import lily


def main() -> None:
    """Measure, print the figures and write the JSON file."""
    options = parser(__doc__)
    options.add_argument("model")
    options.add_argument("--tokens", type=int, default=8192, help="of the long prompt")
    options.add_argument("--part", type=int, default=512, help="tokens of a part, and of the short prompt")
    options.add_argument("--turns", type=int, default=20, help="of decoding")
    options.add_argument("--steps", type=int, default=8, help="tokens of a turn")
    options.add_argument("--threads", type=int, default=2)
    given = options.parse_args()
    begun = time.perf_counter()
    with lily.Model.load(given.model, backend="cpu", threads=given.threads, prefix_cache_bytes=0) as model:
        loaded = time.perf_counter() - begun
        ids = np.random.default_rng(1).integers(0, model.sampled_vocab_size, given.tokens, dtype=np.int32)
        figures = {"load_seconds": loaded, **measured(model, ids, given.part, given.turns, given.steps)}
    for name, value in figures.items():
        print(f"{name:40} {value:10.4g}")
    write(given.json, {"model": Path(given.model).name, "figures": figures})


def measured(model: lily.Model, ids: Any, part: int, turns: int, steps: int) -> dict[str, float]:
    """Tokens a second and ratios of both sessions, and the memory of the long one."""
    with model.session() as long, model.session() as short:
        first = seconds(lambda: short.prefill(ids[:16]))
        short.reset()
        again = seconds(lambda: short.prefill(ids[:16]))
        both = []
        for start in range(0, len(ids), part):
            of_long = seconds(lambda start=start: long.prefill(ids[start : start + part]))
            short.reset()
            both.append((of_long, seconds(lambda: short.prefill(ids[:part]))))
        decoded = [
            (seconds(lambda: decode(long, ids, steps)), seconds(lambda: decode(short, ids, steps)))
            for _ in range(turns)
        ]
        state = long.state_bytes
    count = len(both) * part
    return {
        "first prompt of 16 tokens, s": first,
        "the same prompt again, s": again,
        "long prefill, tok/s": count / sum(one for one, _ in both),
        "short prefill, tok/s": count / sum(one for _, one in both),
        "long decode, tok/s": steps / statistics.median(one for one, _ in decoded),
        "short decode, tok/s": steps / statistics.median(one for _, one in decoded),
        "decode, median ratio of long to short": statistics.median(after / before for before, after in decoded),
        "state of the long session, bytes": state,
    }


def decode(session: lily.Session, ids: Any, steps: int) -> None:
    """Append tokens one at a time."""
    for token in ids[:steps]:
        session.decode(int(token))


def seconds(call: Any) -> float:
    """How long a call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
