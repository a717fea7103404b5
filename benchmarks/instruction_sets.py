"""Times the CPU backend with each instruction set that the processor supports, in rounds, each in its own process.

    python benchmarks/instruction_sets.py MODEL --json benchmarks/results/instruction-sets.json

Runs `lily bench` with LILY_CPU_ISA set. The table has the medians over all rounds.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from records import parser, write

from lily import _core


def main() -> None:
    """Measure, print the table and write the JSON file."""
    options = parser(__doc__)
    options.add_argument("model")
    options.add_argument("--sets", help="separated by commas; by default all that run here")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--prompt", default="128,512")
    options.add_argument("--context", default="16")
    options.add_argument("--decode", type=int, default=32)
    options.add_argument("--runs", type=int, default=3)
    options.add_argument("--threads", type=int, default=2)
    given = options.parse_args()
    sets = given.sets.split(",") if given.sets else list(_core.available_isas())
    rounds = [{name: figures(given, name) for name in sets} for _ in range(given.rounds)]
    medians = {
        name: {what: statistics.median(one[name][what] for one in rounds) for what in rounds[0][name]} for name in sets
    }
    print(table(medians))
    write(
        given.json, {"model": Path(given.model).name, "unit": "tokens a second", "medians": medians, "rounds": rounds}
    )


def figures(given: Any, name: str) -> dict[str, float]:
    """Tokens a second with one instruction set, from a process of its own."""
    command = [sys.executable, "-m", "lily", "bench", given.model, "--backend", "cpu", "--json"]
    for option in ("prompt", "context", "decode", "runs", "threads"):
        command += [f"--{option}", str(getattr(given, option))]
    environment = {**os.environ, "LILY_CPU_ISA": name}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    result = json.loads(done.stdout)
    assert result["isa"] == name, result["isa"]
    return {what: one["median"] for what, one in result["lily"].items()}


def table(medians: dict[str, dict[str, float]]) -> str:
    """A row for each measurement, a column for each instruction set."""
    head = f"{'tok/s':14}" + "".join(f"{name:>10}" for name in medians)
    measurements = next(iter(medians.values()))
    rows = [f"{what:14}" + "".join(f"{one[what]:10.4g}" for one in medians.values()) for what in measurements]
    return "\n".join([head, *rows])


if __name__ == "__main__":
    main()
