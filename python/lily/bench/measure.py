"""measure: all figures of a model, in rounds that alternate with the peer."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lily.bench.bandwidth import read_bandwidth
from lily.bench.engine import LilyEngine
from lily.bench.memory import resident_memory
from lily.bench.page_cache import bring_in
from lily.bench.peer import MODES, run_llama_cpp
from lily.bench.roof import decode_bytes
from lily.bench.samples import Samples
from lily.checkpoint import read_checkpoint, resolve_source

__all__ = ["Workload", "measure"]


@dataclass(frozen=True)
class Workload:
    """What is measured."""

    prompt: tuple[int, ...]  # lengths
    context: tuple[int, ...]  # tokens before decoding
    decode: int  # tokens of one decoding run
    runs: int
    threads: int | None
    gguf: Path | None = None  # the peer's file; None: no peer
    peer_python: str = ""
    backend: str = "cpu"
    bandwidth_bytes: int = 1 << 30  # buffer of each thread


def measure(source: str, workload: Workload, report: Callable[[str], None]) -> dict[str, Any]:
    """Every figure, ready for JSON; `report` is told what runs.

    Raises
    ------
    BenchError
        The peer failed, or two runs produced different tokens.
    CheckpointError, ConfigError
        The model cannot be loaded.
    """
    from lily.model import Model

    checkpoint = read_checkpoint(resolve_source(source))
    start = time.perf_counter()
    with Model.load(source, backend=workload.backend, threads=workload.threads, prefix_cache_bytes=0) as model:
        load_seconds = time.perf_counter() - start
        native = model._open().options
        backend = native.backend
        engine = LilyEngine(model, checkpoint.config.vocab_size)
        lily, peers, version = _rounds(
            engine, workload, sorted(checkpoint.directory.glob("*.safetensors")), native.threads, report
        )
        memory = resident_memory()
        threads, isa = native.threads, native.cpu_isa
    bandwidth: dict[int, float] = {}
    if backend == "cpu":
        report("memory bandwidth")
        bandwidth = {n: read_bandwidth(n, buffer_bytes=workload.bandwidth_bytes) for n in sorted({1, threads})}
    result: dict[str, Any] = {
        "model": str(checkpoint.directory),
        "backend": backend,
        "isa": isa,
        "threads": threads,
        "load_seconds": round(load_seconds, 4),
        "memory_bytes": memory,
        "bandwidth_bytes_per_second": {str(n): round(rate) for n, rate in bandwidth.items()},
        "decode_tokens": workload.decode,
        "lily": {name: samples.to_dict() for name, samples in lily.items()},
        "digests": {name: digest for name, digest in engine.digests.items() if name in lily},
        "roof": {},
    }
    for context in workload.context:
        traffic = decode_bytes(checkpoint, context)
        roof: dict[str, Any] = {"bytes": traffic.to_dict()}
        if bandwidth:
            roof["tokens_per_second"] = round(bandwidth[threads] / traffic.total, 3)
        result["roof"][f"decode {context}"] = roof
    if peers:
        result["peer"] = {"name": "llama.cpp", "version": version, "file": str(workload.gguf), "modes": {}}
        for mode, figures in peers.items():
            result["peer"]["modes"][mode] = {name: samples.to_dict() for name, samples in figures.items()}
        result["ratio"] = {
            name: round(samples.median / max(figures[name].median for figures in peers.values()), 3)
            for name, samples in lily.items()
        }
    return result


def _rounds(
    engine: LilyEngine, workload: Workload, files: list[Path], threads: int, report: Callable[[str], None]
) -> tuple[dict[str, Samples], dict[str, dict[str, Samples]], str]:
    names = [f"prefill {n}" for n in workload.prompt] + [f"decode {n}" for n in workload.context]
    lily = {name: Samples() for name in names}
    modes = MODES if workload.gguf is not None else ()
    peers = {mode: {name: Samples() for name in names} for mode in modes}
    tokens = {name: int(name.split()[1]) if name.startswith("prefill") else workload.decode for name in names}
    warm_up = 128  # tokens, which meet nearly every expert
    peer_files = [workload.gguf] if workload.gguf is not None else []
    job = {
        "file": str(workload.gguf),
        "threads": threads,
        "prompt": workload.prompt,
        "context": workload.context,
        "decode": workload.decode,
        "warm_up": warm_up,
    }
    version = ""
    for run in range(workload.runs):
        report(f"round {run + 1} of {workload.runs}: lily")
        if peer_files:
            bring_in(files, instead_of=peer_files)
        engine.prefill(warm_up)
        for length in workload.prompt:
            lily[f"prefill {length}"].add(length, engine.prefill(length))
        for context in workload.context:
            lily[f"decode {context}"].add(workload.decode, engine.decode(context, workload.decode))
        report(_last_rates(lily))
        for mode in modes:
            report(f"round {run + 1} of {workload.runs}: llama.cpp, {mode}")
            bring_in(peer_files, instead_of=files)
            done = run_llama_cpp(workload.peer_python, mode, job)
            version = done["version"]
            for name in names:
                peers[mode][name].add(tokens[name], done["seconds"][name])
            report(_last_rates(peers[mode]))
    return lily, peers, version


def _last_rates(figures: dict[str, Samples]) -> str:
    return ", ".join(f"{name}: {samples.rates[-1]:.1f}" for name, samples in figures.items()) + " tok/s"
