"""Loading: finds a checkpoint, checks every argument of `Model.load`, and hands the weights to the core."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from lily import _core
from lily.cache.limits import DEFAULT_DISK_BYTES, DEFAULT_SNAPSHOT_INTERVAL, default_cache_bytes
from lily.cache.own_files import cache_path
from lily.checkpoint import Checkpoint, read_checkpoint, resolve_source
from lily.checkpoint.hub import Progress as DownloadProgress
from lily.checks.whole_numbers import whole_number
from lily.errors import ConfigError
from lily.model.engine_options import COMPILING, COPYING, EngineArguments, choose_backend, make_engine_options
from lily.model.gpu_options import GpuOptions
from lily.model.native import native_config, native_source

__all__ = ["CacheOptions", "load_weights"]

logger = logging.getLogger("lily")


@dataclass(frozen=True)
class CacheOptions:
    """The limits of a prefix cache, which is disabled without them."""

    memory_bytes: int = 0
    snapshot_interval: int = DEFAULT_SNAPSHOT_INTERVAL  # tokens; 0: none within a prompt
    directory: Path | None = None
    disk_bytes: int = DEFAULT_DISK_BYTES

    @classmethod
    def checked(
        cls, memory_bytes: int | None, snapshot_interval: int, directory: str | Path | None, disk_bytes: int
    ) -> CacheOptions:
        """The checked options of `Model.load`; ConfigError or InvalidArgumentError names a wrong one."""
        options = cls(
            default_cache_bytes() if memory_bytes is None else whole_number("prefix_cache_bytes", memory_bytes, 0),
            whole_number("snapshot_interval", snapshot_interval, 0),
            None if directory is None else cache_path(directory),
            whole_number("prefix_cache_disk_bytes", disk_bytes, 0),
        )
        if options.directory is not None and options.memory_bytes == 0:
            raise ConfigError("prefix_cache_dir needs a prefix cache: prefix_cache_bytes must not be 0")
        return options


def load_weights(
    source: str | Path,
    backend: str,
    options: GpuOptions | None,
    progress: DownloadProgress | bool | None,
    arguments: EngineArguments,
) -> tuple[Checkpoint, _core.Model]:
    """A checkpoint and the core's model of it; arguments and errors as for `lily.Model.load`."""
    started = time.perf_counter()
    chosen = choose_backend(backend)
    checkpoint = read_checkpoint(resolve_source(source, progress=progress))
    engine_options = make_engine_options(checkpoint, chosen, options, arguments)
    told = progress if callable(progress) else _no_progress
    engine_options.copy_progress = partial(told, COPYING)
    engine_options.compile_progress = partial(told, COMPILING)
    native = _core.Model(native_config(checkpoint.config), native_source(checkpoint.source), engine_options)
    _log(checkpoint, native, 1e3 * (time.perf_counter() - started), arguments.max_context)
    return checkpoint, native


def _log(checkpoint: Checkpoint, native: _core.Model, milliseconds: float, max_context: int | None) -> None:
    loaded, on_cpu = native.options, native.options.backend == "cpu"
    what = f"cpu backend, {loaded.cpu_isa} kernels, {loaded.threads} threads" if on_cpu else f"{loaded.backend} backend"
    logger.info("loaded %s in %.0f ms: %s", checkpoint.directory, milliseconds, what)
    if not on_cpu:
        tensors, size = _core.gpu.copied_weights(native)
        logger.info("%d tensors (%.1f MiB) were copied: they are not aligned in the files", tensors, size / 2**20)
    if max_context is None and loaded.max_context < checkpoint.config.max_position_embeddings:
        logger.info("max_context is %d: the GPU's memory has no room for more", loaded.max_context)


def _no_progress(what: str, done: int, total: int) -> None:
    """Lets Python notice Ctrl-C while weights are copied and kernels compiled."""
