"""Profiles the CPU backend: the share of each function in prompts or in decoding, as perf samples it.

    python benchmarks/profile_cpu.py MODEL --phase prefill --tokens 512

Needs Linux, perf, and a module that was not stripped: pip install . -Cinstall.strip=false
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from records import parser, write

import lily


def main() -> None:
    """Profile a process of its own, print the shares and write the JSON file."""
    options = parser(__doc__)
    options.add_argument("model")
    options.add_argument("--phase", choices=("prefill", "decode"), default="decode")
    options.add_argument("--tokens", type=int, default=512, help="of a prompt; before decoding, 16 are computed")
    options.add_argument("--repeat", type=int, default=8, help="prompts, or times 32 decoded tokens")
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--inside", action="store_true", help="the profiled process; not for callers")
    given = options.parse_args()
    if given.inside:
        work(given.model, given.phase, given.tokens, given.repeat, given.threads)
        return
    with tempfile.TemporaryDirectory() as folder:
        samples = Path(folder) / "perf.data"
        command = ["perf", "record", "-q", "-F", "499", "-e", "cpu-clock", "-o", samples]
        subprocess.run([*command, sys.executable, *sys.argv, "--inside"], check=True)
        report = ["perf", "report", "-q", "-i", samples, "--stdio", "--no-children", "-F", "overhead,dso,symbol"]
        printed = subprocess.run(report, check=True, capture_output=True, text=True).stdout
    shares = shares_of(printed)
    for name, share in list(shares.items())[:20]:
        print(f"{share:6.2f} %  {name}")
    write(given.json, {"model": Path(given.model).name, "phase": given.phase, "unit": "% of samples", "shares": shares})


def work(model: str, phase: str, tokens: int, repeat: int, threads: int) -> None:
    """What is profiled."""
    with lily.Model.load(model, backend="cpu", threads=threads, prefix_cache_bytes=0) as loaded:
        ids = np.random.default_rng(1).integers(0, loaded.sampled_vocab_size, max(tokens, 32), dtype=np.int32)
        session = loaded.session()
        if phase == "decode":
            session.prefill(ids[:16])
        for _ in range(repeat):
            if phase == "prefill":
                session.reset()
                session.prefill(ids[:tokens])
            else:
                for token in ids[:32]:
                    session.decode(int(token))


def shares_of(printed: str) -> dict[str, float]:
    """Percent by "library: function", largest first."""
    shares: dict[str, float] = {}
    for line in printed.splitlines():
        match = re.match(r"\s*([\d.]+)%\s+(\S+)\s+\[.\]\s+(.*\S)", line)
        if match:
            symbol = "no symbol" if match[3].startswith("0x") else match[3]
            name = f"{match[2]}: {symbol}"
            shares[name] = shares.get(name, 0.0) + float(match[1])
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


if __name__ == "__main__":
    main()
