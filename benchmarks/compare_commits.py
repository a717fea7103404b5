"""Compares two commits: loading, the engine's steps and served requests, in turn on one machine.

    python benchmarks/compare_commits.py v0.1.0 main --rounds 8 --json benchmarks/results/NAME.json

Each commit is installed from a clean export of its sources into a virtual environment under build/compare. A round runs
every measurement once for each commit, in an order that alternates; the table has the medians over all rounds and the
median of the ratios within rounds, which is the figure to trust on a machine that others use too.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from records import machine

ROOT = Path(__file__).resolve().parent.parent
WORKLOADS = Path(__file__).resolve().parent / "workloads"


def main() -> None:
    """Install both commits, measure, print the table and write the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--workload", choices=sorted(one.stem for one in WORKLOADS.glob("*.py")), action="append")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    commits = [commit_of(options.before), commit_of(options.after)]
    pythons = [installed(commit) for commit in commits]
    workloads = options.workload or sorted(one.stem for one in WORKLOADS.glob("*.py"))
    rounds = [measured(pythons, workloads, turn) for turn in range(options.rounds)]
    print(table(rounds))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(record(commits, rounds), indent=1) + "\n")


def commit_of(name: str) -> str:
    """The full hash of a commit."""
    command = ["git", "-C", ROOT, "rev-parse", "--verify", f"{name}^{{commit}}"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def installed(commit: str) -> Path:
    """The interpreter of a virtual environment that has a commit; made at the first call."""
    folder = ROOT / "build" / "compare" / commit[:12]
    python = folder / "venv" / "bin" / "python"
    if (folder / "ready").exists():
        return python
    print(f"installing {commit[:12]}", file=sys.stderr)
    sources = folder / "sources"
    sources.mkdir(parents=True, exist_ok=True)
    archive = subprocess.run(["git", "-C", ROOT, "archive", commit], check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", sources], input=archive, check=True)
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    subprocess.run([python, "-m", "pip", "install", "-q", f"{sources}[cli,server,structured]"], check=True)
    (folder / "ready").touch()
    return python


def measured(pythons: list[Path], workloads: list[str], turn: int) -> list[dict[str, float]]:
    """The figures of each commit in one round."""
    figures: list[dict[str, float]] = [{}, {}]
    for workload in workloads:
        for which in (0, 1) if turn % 2 == 0 else (1, 0):
            command = [pythons[which], WORKLOADS / f"{workload}.py"]
            environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
            done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment, cwd="/")
            figures[which].update(json.loads(done.stdout))
    return figures


def table(rounds: list[list[dict[str, float]]]) -> str:
    """The medians of all figures."""
    width = max(len(name) for name in rounds[0][0])
    lines = [f"{'':{width}}  {'before':>10}  {'after':>10}  {'ratio':>6}  (lowest to highest ratio)"]
    for name in rounds[0][0]:
        before, after = ([one[which][name] for one in rounds] for which in (0, 1))
        ratios = [new / old for old, new in zip(before, after, strict=True)]
        lines.append(
            f"{name:{width}}  {statistics.median(before):10.4g}  {statistics.median(after):10.4g}"
            f"  {statistics.median(ratios):6.3f}  ({min(ratios):.3f} to {max(ratios):.3f})"
        )
    return "\n".join(lines)


def record(commits: list[str], rounds: list[list[dict[str, float]]]) -> dict[str, object]:
    """What the JSON file holds: the command, the machine and every figure."""
    return {
        "command": f"python benchmarks/compare_commits.py {commits[0][:12]} {commits[1][:12]} --rounds {len(rounds)}",
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "before": [one[0] for one in rounds],
        "after": [one[1] for one in rounds],
    }


if __name__ == "__main__":
    main()
