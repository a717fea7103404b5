"""Times single kernels of the CPU backend: products of one row and of several, the delta rule, attention.

    python benchmarks/cpu_kernels.py build/ci --isa avx512 --json benchmarks/results/cpu-kernels.json

The folder is a build with -DLILY_BUILD_TESTS=ON (CONTRIBUTING.md has the command). Builds and runs the programs
tests/bench_matmul.cpp and tests/bench_float_kernels.cpp there.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from records import parser, write

PROGRAMS = ("bench_matmul", "bench_float_kernels")
_MATMUL = re.compile(r"^(\S+) +(.*\S) +threads=(\d+) +([\d.]+) (\S+)$")
_FLOAT = re.compile(r"^  (.*\S) +[\d.]+ us +([\d.]+) GB/s +([\d.]+) GFLOP/s$")


def main() -> None:
    """Build, measure, print the figures and write the JSON file."""
    options = parser(__doc__)
    options.add_argument("build", type=Path)
    options.add_argument("--isa", help="one instruction set; by default all that run here")
    given = options.parse_args()
    subprocess.run(["cmake", "--build", given.build, "--target", *PROGRAMS], check=True)
    figures = {}
    for name in PROGRAMS:
        command = [given.build / name, *([given.isa] if given.isa else [])]
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        print(printed, end="")
        figures.update(read(printed))
    write(given.json, {"figures": figures})


def read(printed: str) -> dict[str, float]:
    """The figures in what a program prints, by instruction set, kernel and threads."""
    figures: dict[str, float] = {}
    isa = ""
    for line in printed.splitlines():
        if matched := _MATMUL.match(line):
            name, what, threads, value, unit = matched.groups()
            figures[f"{name}, {what}, {threads} threads, {unit}"] = float(value)
        elif matched := _FLOAT.match(line):
            figures[f"{isa}, {matched[1]}, GB/s"] = float(matched[2])
            figures[f"{isa}, {matched[1]}, GFLOP/s"] = float(matched[3])
        else:
            isa = line.strip()
    return figures


if __name__ == "__main__":
    main()
