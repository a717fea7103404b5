"""Times the kernel of prompt attention alone, at the real model's sizes: TFLOP/s, the best of several runs.

    python benchmarks/prompt_attention.py --json benchmarks/results/prompt-attention-h200.json
    python benchmarks/prompt_attention.py --device sim --rows 32 --positions 64 --runs 1       # that it runs

Only the pairs of a row and a position that it sees are counted, two products of head_dim multiply-adds each.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from records import parser, write

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / "tests" / folder) for folder in ("metal", "support")]

HEADS, KV_HEADS, HEAD_DIM = 16, 2, 256


def main() -> None:
    """Measure, print the figures and write the JSON file."""
    options = parser(__doc__)
    options.add_argument("--device", choices=("cuda", "sim"), default="cuda")
    options.add_argument("--rows", type=int, default=2048)
    options.add_argument("--positions", default="6144,30720", help="before the rows, separated by commas")
    options.add_argument("--runs", type=int, default=5)
    given = options.parse_args()
    os.environ["LILY_TEST_DEVICE"] = given.device
    figures = {}
    for position in map(int, given.positions.split(",")):
        figures[f"{given.rows} rows after {position} positions"] = rate(given.rows, position, given.runs)
    for name, value in figures.items():
        print(f"{name}: {value:.3g} TFLOP/s")
    write(given.json, {"device": given.device, "unit": "TFLOP/s", "figures": figures})


def rate(rows: int, position: int, runs: int) -> float:
    """TFLOP/s of the fastest run."""
    from attention_cases import HEAD_DIM as HEAD_DIM_CONSTANT
    from attention_cases import Shape, random_bfloat16, random_cache

    from device_runner import run, sim
    from lily_args import ARGS

    shape = Shape(rows=rows, heads=HEADS, kv_heads=KV_HEADS, head_dim=HEAD_DIM, position=position)
    rng = np.random.default_rng(1)
    query = random_bfloat16(rng, rows, HEADS, HEAD_DIM, scale=1 / HEAD_DIM**0.5)
    keys, values = random_cache(rng, shape, position + rows)
    gates = random_bfloat16(rng, rows, HEADS, 2, HEAD_DIM)
    out: Any = np.zeros((rows, HEADS, HEAD_DIM), np.uint16)
    wide = os.environ["LILY_TEST_DEVICE"] == "cuda"
    group_rows = ARGS.kWideAttentionRows if wide else ARGS.kAttentionRows
    seconds = [
        run(
            sim(),
            "attention_prefill",
            {0: query, 1: keys, 2: values, 3: gates, 4: np.array([position], np.int32), 5: out},
            args=shape.args(),
            threadgroups=(-(-rows // group_rows), HEADS),
            threads=ARGS.kAttentionThreads,
            constants={HEAD_DIM_CONSTANT: HEAD_DIM},
        )
        for _ in range(runs)
    ]
    pairs = HEADS * (rows * position + rows * (rows + 1) // 2)
    return pairs * 2 * HEAD_DIM * 2 / min(seconds) * 1e-12


if __name__ == "__main__":
    main()
