"""Profiles Lily's kernels on an NVIDIA GPU: time and memory traffic of a step or a prompt chunk, by kernel and grid.

    python tools/profile_cuda.py MODEL [--context N] [--rows N] [--bandwidth TB/s] [--json FILE]

Profiles a decode step after --context tokens, or, with --rows, the chunk of a prompt that follows them. Runs Nsight
Compute (ncu) on itself: it times every kernel alone, caches kept and clocks left as they are. The wall time of the same
pass without a profiler stands beside the sum: what kernels do not account for is the time between them. "floor" is the
time that a kernel's bytes take at --bandwidth.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

TIME = "gpu__time_duration.sum"
READ, WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
STEPS = 4  # decode steps under the profiler; their mean is reported
TIMED_STEPS = 64


def primary_context() -> ctypes.CDLL:
    """The driver, with the first GPU's context, which Lily uses too, current in this thread."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise SystemExit(f"there is no NVIDIA driver on this machine ({error})") from error
    context = ctypes.c_void_p()
    for result in (driver.cuInit(0), driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)):
        if result != 0:
            raise SystemExit(f"the CUDA driver reports error {result}")
    driver.cuCtxSetCurrent(context)
    return driver


def run_pass(given: argparse.Namespace) -> None:
    """In a process of its own: run the pass with the profiler on around it, print the seconds of one."""
    import numpy as np

    import lily

    driver = primary_context()
    rng = np.random.default_rng(5)
    with lily.Model.load(given.model, backend="cuda", prefix_cache_bytes=0) as model:
        session = model.session()
        ids = rng.integers(0, model.config.vocab_size, given.context + given.rows, dtype=np.int32)
        seconds = []
        for run in range(4):  # the first ones compile kernels and record graphs
            session.reset()
            if given.context:
                session.prefill(ids[: given.context])
            last = run == 3
            if given.rows:
                if last:
                    driver.cuProfilerStart()
                start = time.perf_counter()
                session.prefill(ids[given.context :])
                seconds.append(time.perf_counter() - start)
            else:
                steps = STEPS if given.profiled else TIMED_STEPS
                list(session.generate(4, sampling=lily.Sampling.greedy(), stop_tokens=()))
                if last:
                    driver.cuProfilerStart()
                start = time.perf_counter()
                list(session.generate(steps, sampling=lily.Sampling.greedy(), stop_tokens=()))
                seconds.append((time.perf_counter() - start) / steps)
            if last:
                driver.cuProfilerStop()
    print(json.dumps({"seconds": statistics.median(seconds[1:])}))


def child(given: argparse.Namespace, profiled: bool) -> list[str]:
    lengths = ["--context", str(given.context), "--rows", str(given.rows)]
    return [sys.executable, __file__, given.model, *lengths, "--run", *["--profiled"] * profiled]


def wall_seconds(given: argparse.Namespace) -> float:
    done = subprocess.run(child(given, False), stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(f"the pass without a profiler failed with exit code {done.returncode}")
    return float(json.loads(done.stdout.splitlines()[-1])["seconds"])


def profile(given: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Launches, seconds and bytes by kernel and grid, of all profiled passes together."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "ncu.csv"
        tool = ["ncu", "--csv", "--page", "raw", "--print-units", "base", "--log-file", str(log)]
        tool += ["--profile-from-start", "off", "--graph-profiling", "node"]
        tool += ["--cache-control", "none", "--clock-control", "none"]
        tool += ["--metrics", ",".join((TIME, READ, WRITTEN))]
        done = subprocess.run([*tool, *child(given, True)], stdout=subprocess.DEVNULL)
        text = log.read_text() if log.exists() else ""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    if done.returncode != 0 or not lines:
        raise SystemExit(f"ncu failed with exit code {done.returncode}; it said: {text[-1000:].strip() or 'nothing'}")
    rows = list(csv.DictReader(lines))
    kernels: dict[str, dict[str, float]] = defaultdict(lambda: dict.fromkeys(("launches", "seconds", "bytes"), 0.0))
    for row in rows[1:]:  # the first holds units: ns and bytes
        grid = "x".join(size for size in re.findall(r"\d+", row["Grid Size"]) if size != "1") or "1"
        total = kernels[f"{row['Kernel Name'].split('(')[0]}, {grid}"]
        total["launches"] += 1
        total["seconds"] += 1e-9 * number(row[TIME])
        total["bytes"] += sum(number(row[name]) for name in (READ, WRITTEN))
    return kernels


def number(text: str) -> float:
    return float(text.replace(",", ""))


def table(kernels: dict[str, dict[str, float]], passes: float, wall: float, bandwidth: float) -> str:
    """A Markdown table of one pass."""
    lines = [
        "| kernel, threadgroups | launches | us each | us | MB | floor, us |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    total: dict[str, float] = defaultdict(float)
    for name, sums in sorted(kernels.items(), key=lambda item: -item[1]["seconds"]):
        one = {key: value / passes for key, value in sums.items()}
        for key, value in one.items():
            total[key] += value
        each = 1e6 * one["seconds"] / one["launches"]
        lines.append(
            f"| {name} | {one['launches']:.0f} | {each:.2f} | {1e6 * one['seconds']:.0f} | {one['bytes'] / 1e6:.1f} | "
            f"{1e6 * one['bytes'] / bandwidth:.0f} |"
        )
    lines.append(
        f"| **all kernels** | {total['launches']:.0f} | {1e6 * total['seconds'] / total['launches']:.2f} | "
        f"{1e6 * total['seconds']:.0f} | {total['bytes'] / 1e6:.0f} | {1e6 * total['bytes'] / bandwidth:.0f} |"
    )
    lines.append(f"| between them | | | {1e6 * (wall - total['seconds']):.0f} | | |")
    lines.append(f"| **the pass** | | | {1e6 * wall:.0f} | | |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--context", type=int, default=4096, help="tokens before the pass")
    parser.add_argument("--rows", type=int, default=0, help="tokens of a prompt chunk; 0: a decode step")
    parser.add_argument("--bandwidth", type=float, default=4.64, help="of the memory, TB/s")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--run", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--profiled", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        run_pass(given)
        return
    if shutil.which("ncu") is None:
        raise SystemExit("Nsight Compute (ncu) is not on the PATH; it comes with the CUDA toolkit")
    wall, kernels = wall_seconds(given), profile(given)
    passes: float = 1 if given.rows else kernels["advance_position, 1"]["launches"]
    if given.json:
        figures: dict[str, Any] = {"wall_seconds": wall, "passes": passes, "kernels": kernels}
        given.json.write_text(json.dumps(figures, indent=2))
    print(table(kernels, passes, wall, 1e12 * given.bandwidth))


if __name__ == "__main__":
    main()
