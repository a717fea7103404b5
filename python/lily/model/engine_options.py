"""Checks the arguments of `Model.load` and turns them into the core's options."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from lily import _core
from lily.checkpoint import Checkpoint, plan
from lily.checkpoint.memory_plan import DEFAULT_PREFILL_CHUNK
from lily.checks.arguments import check_text
from lily.checks.quoting import quoted
from lily.checks.whole_numbers import whole_number
from lily.errors import BackendError, ConfigError, MemoryLimitError
from lily.model.gpu_options import GpuOptions

__all__ = [
    "COMPILING",
    "COPYING",
    "EngineArguments",
    "arithmetic_of",
    "available_backends",
    "choose_backend",
    "make_engine_options",
]

# What a progress callback is told while a model is loaded.
COPYING = "copying weights to the GPU"  # one with memory of its own
COMPILING = "compiling kernels"

# The GPU backends, in the order in which "auto" prefers them.
_GPUS = ("metal", "cuda")
# Switches that change only the schedule, not the results.
_SCHEDULE = ("route_on_device", "token_handoff", "concurrent_stages", "pass_seconds")


def available_backends() -> tuple[str, ...]:
    """The names that `Model.load` takes as `backend` on this machine, besides "auto"."""
    return ("cpu", *_core.gpu.available_devices())


def choose_backend(name: str) -> str:
    """The backend of a name, with "auto" resolved.

    Raises
    ------
    BackendError
        It is not in this build or not on this machine.
    """
    check_text("backend", name, BackendError)
    if name == "cpu":  # looking for GPUs would start CUDA here, and a process forked from this one could not use it
        return name
    names = available_backends()
    if name == "auto":
        return next((device for device in _GPUS if device in names), "cpu")
    if name not in names:
        if name in _GPUS:
            _core.device.open(name)  # its error says what is missing
        listed = ", ".join(f'"{known}"' for known in ("auto", *names))
        raise BackendError(
            f'backend "{name[:80]}" is not part of this build or not on this machine; available: {listed}'
        )
    return name


@dataclass(frozen=True)
class EngineArguments:
    """Unchecked arguments of `lily.Model.load` for the engine; see there."""

    threads: int | None
    max_context: int | None
    prefill_chunk: int | None
    weights: str
    cpu_isa: str | None
    kv_cache_type: str | None
    memory_limit: int | None


def make_engine_options(
    checkpoint: Checkpoint, backend: str, options: GpuOptions | None, given: EngineArguments
) -> _core.EngineOptions:
    """The core's options; errors as for `lily.Model.load`."""
    native = _core.EngineOptions()
    native.backend = backend
    native.threads = _count("threads", given.threads)
    native.max_context = _count("max_context", given.max_context)
    native.prefill_chunk = _count("prefill_chunk", given.prefill_chunk)
    native.weights = _text("weights", given.weights)
    native.cpu_isa = _text("cpu_isa", "" if given.cpu_isa is None else given.cpu_isa)
    native.kv_cache_type = _text("kv_cache_type", "float16" if given.kv_cache_type is None else given.kv_cache_type)
    if options is not None:
        if backend == "cpu":
            raise ConfigError("options (lily.GpuOptions) apply only to GPU backends, not to backend='cpu'")
        if not isinstance(options, GpuOptions):
            raise ConfigError(f"options must be a lily.GpuOptions, not {quoted(options)}")
        native.gpu = options.to_core()
    if backend != "cpu":
        _refuse_cpu_options(backend, given.cpu_isa, given.kv_cache_type)
    longest = checkpoint.config.max_position_embeddings
    if native.max_context > longest:
        raise ConfigError(f"max_context must be at most the model's {longest:,} tokens, not {native.max_context:,}")
    if given.memory_limit is not None:
        _enforce_memory_limit(checkpoint, native, whole_number("memory_limit", given.memory_limit, 1))
    return native


def arithmetic_of(native: _core.EngineOptions, options: GpuOptions) -> str:
    """What the bits of a state depend on besides the weights; states of different ones are not interchangeable."""
    if native.backend == "cpu":
        # All instruction sets give the same bits, except the portable kernels where they cannot fuse multiply and add.
        kind = "cpu portable" if native.cpu_isa == "portable" else "cpu"
        return f"{kind}, arithmetic={_core.CPU_ARITHMETIC}, kv_cache_type={native.kv_cache_type}"
    values = {field.name: getattr(options, field.name) for field in dataclasses.fields(GpuOptions)}
    changed = [
        f"{field.name}={values[field.name]}"
        for field in dataclasses.fields(GpuOptions)
        if field.name not in _SCHEDULE and values[field.name] != field.default
    ]
    return ", ".join([native.backend, f"arithmetic={_core.gpu_arithmetic()}", *changed])


def _refuse_cpu_options(backend: str, cpu_isa: str | None, kv_cache_type: str | None) -> None:
    if cpu_isa:
        raise ConfigError(f"cpu_isa applies only to backend='cpu', not to {backend!r}")
    if kv_cache_type not in (None, "bfloat16"):
        raise ConfigError(f"kv_cache_type={kv_cache_type!r} applies only to backend='cpu'; {backend} uses bfloat16")


def _count(name: str, value: int | None) -> int:
    """A positive number; 0 if it is missing, which lets the core choose."""
    return 0 if value is None else whole_number(name, value, 1)


def _text(name: str, value: str) -> str:
    check_text(name, value, ConfigError)
    return value


def _enforce_memory_limit(checkpoint: Checkpoint, options: _core.EngineOptions, memory_limit: int) -> None:
    context = options.max_context or checkpoint.config.max_position_embeddings
    needed = plan(
        checkpoint,
        context,
        threads=options.threads or _core.physical_core_count(),
        prefill_chunk=options.prefill_chunk or DEFAULT_PREFILL_CHUNK,
    )
    if needed.total > memory_limit:
        raise MemoryLimitError(
            f"{checkpoint.directory}: {needed.total:,} bytes are needed for a context of {context:,} tokens, "
            f"more than the limit of {memory_limit:,}; lower max_context or raise memory_limit.\n{needed}"
        )
