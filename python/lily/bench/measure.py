"""measure: all figures of a model, in rounds that alternate with its peers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lily.bench.bandwidth import read_bandwidth
from lily.bench.engine import LilyEngine
from lily.bench.grid import default_lengths
from lily.bench.peer import Peer, llama_cpp, mlx_lm
from lily.bench.roof import decode_bytes
from lily.bench.rounds import Plan, Rounds
from lily.checkpoint import Checkpoint, read_checkpoint, resolve_source

__all__ = ["Workload", "measure"]


@dataclass(frozen=True)
class Workload:
    """What is measured."""

    prompt: tuple[int, ...] | None = None  # lengths; None: `default_lengths`
    context: tuple[int, ...] | None = None  # tokens before decoding
    decode: int = 32  # tokens of one decoding run
    runs: int = 5
    threads: int | None = None
    peers: tuple[str, ...] = ()  # "llama.cpp", "mlx-lm"
    gguf: Path | None = None  # llama.cpp's file
    peer_python: str = ""
    peer_seconds: float = 60.0  # seconds; prompts that take a peer longer are left out
    backend: str = "cpu"
    bandwidth_bytes: int = 1 << 30  # buffer of each thread


def measure(source: str, workload: Workload, report: Callable[[str], None]) -> dict[str, Any]:
    """Every figure, ready for JSON; `report` is called with the current run.

    Raises
    ------
    BenchError
        A peer failed, or two runs produced different tokens.
    CheckpointError, ConfigError
        The model cannot be loaded.
    """
    from lily.model import Model

    def load() -> Model:
        return Model.load(source, backend=workload.backend, threads=workload.threads, prefix_cache_bytes=0)

    checkpoint = read_checkpoint(resolve_source(source))
    start = time.perf_counter()
    with load() as model:
        load_seconds = time.perf_counter() - start
        native = model.core.options
        plan = _plan(workload, native.backend, native.threads, model.max_context)
        engine = LilyEngine(model, checkpoint.config.vocab_size)
        files = tuple(sorted(checkpoint.directory.glob("*.safetensors")))
        with Rounds(engine, plan, files, _peers(workload, native.backend, checkpoint), report, load) as rounds:
            rounds.run(workload.runs)
        engine.close()
    bandwidth: dict[int, float] = {}
    if native.backend == "cpu":
        report("memory bandwidth")
        counts = sorted({1, native.threads})
        bandwidth = {n: read_bandwidth(n, buffer_bytes=workload.bandwidth_bytes) for n in counts}
    result: dict[str, Any] = {
        "model": str(checkpoint.directory),
        "backend": native.backend,
        "isa": native.cpu_isa,
        "threads": native.threads,
        "load_seconds": round(load_seconds, 4),
        "memory_bytes": rounds.memory,
        "bandwidth_bytes_per_second": {str(n): round(rate) for n, rate in bandwidth.items()},
        "decode_tokens": workload.decode,
        "lily": {name: samples.to_dict() for name, samples in rounds.lily.items()},
        "digests": {name: digest for name, digest in engine.digests.items() if name in rounds.lily},
        "roof": {
            f"decode {context}": _roof(checkpoint, context, bandwidth.get(native.threads)) for context in plan.context
        },
    }
    if rounds.peers:
        result["peers"], result["ratio"] = rounds.peer_figures(), rounds.ratios()
    return result


def _plan(workload: Workload, backend: str, threads: int, max_context: int) -> Plan:
    prompt, context = default_lengths(backend, max_context - workload.decode - 1)
    return Plan(
        prompt=prompt if workload.prompt is None else workload.prompt,
        context=context if workload.context is None else workload.context,
        decode=workload.decode,
        threads=threads,
        backend=backend,
        peer_python=workload.peer_python,
        peer_seconds=workload.peer_seconds,
    )


def _peers(workload: Workload, backend: str, checkpoint: Checkpoint) -> list[Peer]:
    peers = []
    if "llama.cpp" in workload.peers:
        assert workload.gguf is not None
        peers.append(llama_cpp(workload.gguf, backend))
    if "mlx-lm" in workload.peers:
        peers.append(mlx_lm(checkpoint.directory))
    return peers


def _roof(checkpoint: Checkpoint, context: int, bandwidth: float | None) -> dict[str, Any]:
    traffic = decode_bytes(checkpoint, context)
    roof: dict[str, Any] = {"bytes": traffic.to_dict()}
    if bandwidth is not None:
        roof["tokens_per_second"] = round(bandwidth / traffic.total, 3)
    return roof
