"""Runs one peer's measurements, by path, in an interpreter that has the peer: python -I peer_driver.py ENGINE_FILE.

ENGINE_FILE defines `open_engine(job)`. Reads one JSON object a line from standard input and answers each with one line:

- first, what to open ("file", "warm_up" and what the engine wants): {"version": text}
- then rounds ("prompt", "context", "decode", "prompt_seconds"): {"seconds": {"prefill N": s, "decode N": s},
  "major_faults": {the same names: pages that had to be read from the disk}}

An engine has `version`, `vocab_size`, `prefill(ids)`, `decode(context, tokens)`, both in seconds, and `keeps_prompt`:
whether `decode` continues the prompt of the previous call; otherwise it makes a context of that length itself. Imports
nothing from Lily.
"""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import sys
from typing import Any

import numpy as np


def private_stdout() -> Any:
    """The answers' stream; what libraries print goes to standard error from now on."""
    stream = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return stream


def engine_module(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("peer_engine", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def prompt_ids(engine: Any, length: int) -> list[int]:
    """The same ids as Lily's prompt of that length."""
    ids: list[int] = np.random.default_rng(length).integers(0, engine.vocab_size, length, dtype=np.int32).tolist()
    return ids


def major_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt


def measure(engine: Any, job: dict[str, Any]) -> dict[str, dict[str, float]]:
    """One round: prompts in ascending order, each followed by decoding; those that would take too long are left out."""
    seconds: dict[str, float] = {}
    faults: dict[str, float] = {}
    pace = 0.0  # seconds per token of the longest prompt so far
    for length in sorted({*job["prompt"], *job["context"]}):
        needs_prompt = length in job["prompt"] or engine.keeps_prompt
        too_long = pace * length > job["prompt_seconds"]
        before = major_faults()
        if needs_prompt and not too_long:
            prefill = engine.prefill(prompt_ids(engine, length))
            pace = prefill / length
            if length in job["prompt"]:
                seconds[f"prefill {length}"] = prefill
                faults[f"prefill {length}"] = major_faults() - before
        before = major_faults()
        if length in job["context"] and not (engine.keeps_prompt and too_long):
            seconds[f"decode {length}"] = engine.decode(length, job["decode"])
            faults[f"decode {length}"] = major_faults() - before
    return {"seconds": seconds, "major_faults": faults}


def main() -> None:
    answers = private_stdout()
    job = json.loads(sys.stdin.readline())
    engine = engine_module(sys.argv[1]).open_engine(job)
    engine.prefill(prompt_ids(engine, job["warm_up"]))
    engine.decode(job["warm_up"], 4)
    print(json.dumps({"version": engine.version}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(measure(engine, json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
