"""A loaded model: the entry point of the library."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection
from os import PathLike
from pathlib import Path
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from lily import _core
from lily.cache import PrefixCache
from lily.cache.cached_prefill import as_positions, cached_prefill
from lily.cache.disk_tier import DiskTier
from lily.cache.limits import DEFAULT_DISK_BYTES, DEFAULT_SNAPSHOT_INTERVAL
from lily.checkpoint import Checkpoint
from lily.checkpoint.hub import Progress as DownloadProgress
from lily.checks.arguments import as_path
from lily.checks.token_ids import Tokens, as_token_ids
from lily.checks.whole_numbers import real_number
from lily.errors import BusyError, ClosedError, InvalidArgumentError
from lily.identity.fingerprint import WeightsIdentity
from lily.model.engine_options import EngineArguments, arithmetic_of
from lily.model.facts import ModelFacts
from lily.model.gpu_options import GpuOptions
from lily.model.loading import CacheOptions, load_weights
from lily.model.open_objects import OpenObjects
from lily.model.text import ModelText
from lily.sampling import check_seed
from lily.session import Progress, Session
from lily.session.progress import checked_progress
from lily.session.session_file import load_snapshot

__all__ = ["Model"]

logger = logging.getLogger("lily")

DEFAULT_CLOSE_SECONDS = 60.0


class Model(ModelText, ModelFacts):
    """Weights mapped in place and the backend that runs them. Made by `Model.load`.

    Examples
    --------
    >>> import lily
    >>> model = lily.Model.load("lily-tiny")
    >>> session = model.session()
    >>> logits = session.prefill(model.render_chat([{"role": "user", "content": "Hi"}]))
    >>> text = model.tokenizer.decode(list(session.generate(max_tokens=32, sampling=lily.Sampling.greedy())))
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        native: _core.Model,
        cache: CacheOptions | None = None,
        *,
        gpu_options: GpuOptions | None = None,
    ) -> None:
        cache = cache or CacheOptions()
        #: The files it was loaded from, and what was skipped in them.
        self.checkpoint = checkpoint
        self._native: _core.Model | None = native
        self._close_lock = threading.RLock()
        self._identity = WeightsIdentity(checkpoint)
        self._snapshot_interval = cache.snapshot_interval
        # For Lily's own modules.
        self.gpu_options = gpu_options or GpuOptions()
        self.open_objects = OpenObjects()
        self._cache = PrefixCache(cache.memory_bytes)
        if cache.directory is not None:
            self._cache.store.attach(DiskTier(self, cache.directory, cache.disk_bytes), self._identity)

    @classmethod
    def load(
        cls,
        source: str | Path,
        *,
        backend: str = "auto",
        options: GpuOptions | None = None,
        max_context: int | None = None,
        threads: int | None = None,
        memory_limit: int | None = None,
        prefill_chunk: int | None = None,
        weights: str = "mmap",
        cpu_isa: str | None = None,
        kv_cache_type: str | None = None,
        prefix_cache_bytes: int | None = None,
        snapshot_interval: int = DEFAULT_SNAPSHOT_INTERVAL,
        prefix_cache_dir: str | Path | None = None,
        prefix_cache_disk_bytes: int = DEFAULT_DISK_BYTES,
        progress: DownloadProgress | bool | None = None,
    ) -> Model:
        """Load a checkpoint of the qwen3_5_moe family.

        The weights are memory-mapped and used in place; memory is used as pages are touched.

        Parameters
        ----------
        source : str or Path
            A checkpoint directory, one .safetensors file beside its config.json, ``"lily-tiny"`` (the bundled small
            model), or a Hugging Face Hub id (needs the extra ``hub``).
        backend : {"auto", "cpu", "sim", ...}
            The backend; `available_backends` lists them. "auto" takes the best one on this machine. "sim" runs the
            GPU engine's kernels on the CPU, slowly and with checks: it is for developers.
        options : GpuOptions, optional
            Switches of the GPU engine, all on by default. The CPU backend has none.
        max_context : int, optional
            Maximum tokens of a session; by default the config's max_position_embeddings, or as many as fit in a GPU's
            memory. Memory for the KV cache grows as it is used.
        threads : int, optional
            CPU threads; one for each physical core by default.
        memory_limit : int, optional
            Bytes. Refuse to load if the plan for `max_context` exceeds them.
        prefill_chunk : int, optional
            Tokens of a prompt computed at once; limits working memory, and the time until Ctrl-C takes effect.
        weights : {"mmap", "read"}
            "mmap" uses the pages of the mapped files: nothing is read while loading, and the system may drop pages and
            read them again if memory is short. "read" copies the files into memory.
        cpu_isa : str, optional
            Kernels of one instruction set ("amx", "avx512", "avx2", on ARM "i8mm", "neon", or "portable"); the
            environment's LILY_CPU_ISA or the best one by default.
        kv_cache_type : {"float16", "bfloat16"}, optional
            Type of cached keys and values.
        prefix_cache_bytes : int, optional
            Bytes that the prefix cache may hold, 0 for none; by default a tenth of the memory, at most 2 GiB. See
            `cached_session`.
        snapshot_interval : int
            Tokens between the snapshots that `cached_session` takes within a long prompt; 0 for none.
        prefix_cache_dir : str or Path, optional
            A directory to which the prefix cache is written in the background, for use after a restart and in other
            processes. Its files contain the prompts' token ids; other files in it are left alone. None writes nothing.
        prefix_cache_disk_bytes : int
            Maximum bytes of all cache files in the directory, of all processes and models.
        progress : callable or bool, optional
            For downloads from the Hub: called as ``progress(what, done_bytes, total_bytes)``; True or False shows a
            progress bar or not; None shows one if standard error is a terminal. A callable is also called for weights
            that are copied to a GPU with its own memory, as ``progress("copying weights to the GPU", done_bytes,
            total_bytes)``, and of GPU kernels that are compiled while loading, as ``progress("compiling kernels", done,
            total)``.

        Raises
        ------
        CheckpointError, ConfigError
            The files are missing, damaged or not supported; the message names the file, the tensor and the remedy.
        MemoryLimitError
            The plan exceeds `memory_limit`, or what the GPU should hold at most; nothing was loaded.
        MissingExtraError
            A Hub id was given and huggingface_hub is not installed.
        BackendError
            The backend is not available here.
        """
        cache = CacheOptions.checked(prefix_cache_bytes, snapshot_interval, prefix_cache_dir, prefix_cache_disk_bytes)
        arguments = EngineArguments(threads, max_context, prefill_chunk, weights, cpu_isa, kv_cache_type, memory_limit)
        checkpoint, native = load_weights(source, backend, options, progress, arguments)
        return cls(checkpoint, native, cache, gpu_options=options)

    # -- sessions --------------------------------------------------------------------------------------------------

    def session(self, *, seed: int | None = None) -> Session:
        """A new, empty session.

        Parameters
        ----------
        seed : int, optional
            Seed of its random draws, 0 to 2**64 - 1; random by default.
        """
        return self.open_objects.add_session(Session(self, _core.Session(self.core), seed))

    def prefill(self, ids: Tokens, *, progress: Progress | None = None) -> Session:
        """A new session that holds `ids`; its logits are in ``session.logits``. See `Session.prefill`."""
        session = self.session()
        session.prefill(ids, progress=progress)
        return session

    def cached_session(
        self,
        ids: Tokens,
        *,
        snapshot_at: Collection[int] = (),
        progress: Progress | None = None,
        seed: int | None = None,
    ) -> Session:
        """A new session that holds `ids` with its logits, computed from the longest prefix that the cache knows.

        The result is that of ``model.prefill(ids)`` bit for bit. On a GPU this holds only if no cached token was
        decoded, because decoding rounds differently there. ``session.cached_tokens`` says how many leading tokens came
        from the cache. An exactly repeated prompt needs no computation.

        Later prompts can start where snapshots are taken: at the positions in `snapshot_at`, at the end of `ids`, every
        ``snapshot_interval`` tokens, and where `ids` diverges from an earlier prompt. ``model.cache.insert(session)``
        after a generation also keeps its end.

        Parameters
        ----------
        ids : sequence of int
            Token ids of the whole prompt, at least one.
        snapshot_at : collection of int
            Numbers of leading tokens after which to take a snapshot: the end of system prompt and tools, and the end of
            each user turn before the assistant's header (from there on the next message drops thinking). Snapshots that
            the cache already covers are not taken again.
        progress : callable, optional
            Called as ``progress(done, total)``: first with the cached tokens, then after each chunk. An exception from
            it stops the call; what was computed stays in the cache for the next try.
        seed : int, optional
            As in `session`.

        Raises
        ------
        InvalidArgumentError, ContextOverflowError
            As `Session.prefill`, before anything is computed.
        """
        array = as_token_ids(ids, self.max_context)
        positions = as_positions(snapshot_at, len(array))
        observe = checked_progress(progress)
        session = self.session(seed=seed)
        try:
            cached_prefill(self, session, array, positions, self._snapshot_interval, observe)
        except BaseException:
            session.close()
            raise
        return session

    @property
    def cache(self) -> PrefixCache:
        """The prefix cache of `cached_session`."""
        return self._cache

    def load_session(self, path: str | PathLike[str], *, seed: int | None = None) -> Session:
        """A session that continues exactly where it was saved by `Session.save`.

        Parameters
        ----------
        path : str or path
            The file.
        seed : int, optional
            Seed of its random draws; the saved session's by default.

        Raises
        ------
        CheckpointError
            The file is missing or damaged, or was saved with other weights, dimensions or another kv_cache_type; or the
            files of the model's own weights were replaced or changed since it was loaded, and their hash is not known.
        NonFiniteError
            The state in the file contains values that are NaN or infinite.
        ContextOverflowError
            The sequence is longer than this model's max_context.
        """
        own_seed = None if seed is None else check_seed(seed)
        snapshot, saved_seed = load_snapshot(as_path("path", path), self)
        session = self.session(seed=saved_seed if own_seed is None else own_seed)
        snapshot.restore_into(session.core)
        return session

    def decode(self, session: Session, token: int) -> npt.NDArray[np.float32]:
        """Append one token to a session: ``session.decode(token)``."""
        if not isinstance(session, Session):
            raise InvalidArgumentError(f"session must be a lily.Session, not a {type(session).__name__}")
        return session.decode(token)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._native is None

    def close(self, *, timeout: float = DEFAULT_CLOSE_SECONDS) -> None:
        """Close all sessions and snapshots, empty the cache and unmap the weights. Closing twice is fine.

        Running calls in other threads are cancelled: each ends after its current chunk or token with `CancelledError`,
        and `close` waits for that. Later calls raise `ClosedError`. If several threads close the model, all return once
        it is closed. The rest of the cache is written to ``prefix_cache_dir``, for at most ten seconds.

        Parameters
        ----------
        timeout : float
            Maximum seconds to wait for those calls.

        Raises
        ------
        BusyError
            Called from a progress callback of this model: nothing was changed. Or a call did not end in time: the model
            accepts no new calls, and `close` may be tried again.
        """
        deadline = time.monotonic() + real_number("timeout", timeout, 0)
        self.open_objects.refuse_own_call()
        if not self._close_lock.acquire(timeout=min(max(0.0, deadline - time.monotonic()), threading.TIMEOUT_MAX)):
            raise BusyError("the model is being closed by another thread, which is waiting for running calls")
        try:
            self.open_objects.close_all(deadline)
            try:
                self._cache.store.close_files()
            finally:
                self._cache.store.close()
                self._native = None
        finally:
            self._close_lock.release()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        try:
            self.close()
        except BusyError as error:
            if error_type is None:
                raise
            logger.warning("%s", error)  # an error in the block matters more

    def __reduce__(self) -> NoReturn:
        raise TypeError("a lily.Model cannot be pickled: its weights are mapped in this process; load it there instead")

    # -- for Lily's own modules ------------------------------------------------------------------------------------

    @property
    def core(self) -> _core.Model:
        """The native model; ClosedError once this one is closed."""
        if self._native is None:
            raise ClosedError("this model is closed; load it again with lily.Model.load()")
        return self._native

    @property
    def arithmetic(self) -> str:
        """What the bits of a state depend on besides the weights; states of different ones are not interchangeable."""
        return arithmetic_of(self.core.options, self.gpu_options)

    @property
    def fingerprint(self) -> str:
        """The weights' identity. The first use may take as long as reading the weights."""
        return self._identity.get()
