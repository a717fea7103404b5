"""A loaded model: the entry point of the library."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt

from lily import _core
from lily._native import native_config, native_source
from lily.arguments import as_flag, as_path
from lily.cache import PrefixCache
from lily.cache.cached_prefill import as_positions, cached_prefill
from lily.cache.disk_tier import DiskTier
from lily.cache.limits import DEFAULT_DISK_BYTES, DEFAULT_SNAPSHOT_INTERVAL, default_cache_bytes
from lily.cache.own_files import cache_path
from lily.checkpoint import Checkpoint, ModelConfig, Plan, plan, read_checkpoint, resolve_source
from lily.checkpoint.hub import Progress as DownloadProgress
from lily.engine_options import COMPILING, COPYING, arithmetic_of, choose_backend, make_engine_options
from lily.errors import BusyError, ClosedError, ConfigError, InvalidArgumentError
from lily.fingerprint import WeightsIdentity
from lily.open_objects import OpenObjects
from lily.options import Options
from lily.sampling import Sampling, check_seed
from lily.session import Progress, Session, Tokens, as_token_ids, checked_progress
from lily.session_file import load_snapshot
from lily.snapshot import Snapshot
from lily.text import (
    ChatTemplate,
    GenerationDefaults,
    TextGuard,
    Tokenizer,
    answerable,
    prepare_messages,
    read_generation_defaults,
    read_stop_tokens,
)
from lily.whole_numbers import real_number, whole_number

if TYPE_CHECKING:
    from lily.chat import Chat
    from lily.chat.chat import ChatSupport

__all__ = ["Model"]

logger = logging.getLogger("lily")

DEFAULT_CLOSE_SECONDS = 60.0


def _no_progress(what: str, done: int, total: int) -> None:
    """Called so that Python can notice Ctrl-C while weights are copied and kernels compiled."""


class Model:
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
        *,
        prefix_cache_bytes: int = 0,
        snapshot_interval: int = DEFAULT_SNAPSHOT_INTERVAL,
        gpu_options: Options | None = None,
    ) -> None:
        self._checkpoint = checkpoint
        self._native: _core.Model | None = native
        self._gpu_options = gpu_options or Options()
        self._open_objects = OpenObjects()
        self._sessions = self._open_objects.sessions
        self._close_lock = threading.RLock()
        self._cache = PrefixCache(prefix_cache_bytes)
        self._identity = WeightsIdentity(checkpoint)
        self._snapshot_interval = snapshot_interval

    @classmethod
    def load(
        cls,
        source: str | Path,
        *,
        backend: str = "auto",
        options: Options | None = None,
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

        The weights are memory-mapped and used in place: loading takes milliseconds, and memory is used as pages are
        touched.

        Parameters
        ----------
        source : str or Path
            A checkpoint directory, one .safetensors file beside its config.json, ``"lily-tiny"`` (the bundled small
            model), or a Hugging Face Hub id (needs the extra ``hub``).
        backend : {"auto", "cpu", "sim", ...}
            What computes; `available_backends` lists them. "auto" takes the best one of this machine. "sim" runs the
            GPU engine's kernels on the CPU, slowly and with checks: it is for developers.
        options : Options, optional
            Switches of the GPU engine, all on by default. The CPU backend has none.
        max_context : int, optional
            Most tokens of a session; the config's max_position_embeddings by default, or what a GPU's memory has room
            for. Memory for the KV cache grows as it is used.
        threads : int, optional
            CPU threads; one for each physical core by default.
        memory_limit : int, optional
            Bytes. Refuse to load when the plan for `max_context` exceeds them.
        prefill_chunk : int, optional
            Tokens of a prompt computed at once; bounds the working memory and the time until Ctrl-C is seen.
        weights : {"mmap", "read"}
            "mmap" uses the files' pages where the system keeps them: loading is immediate, and pages may be dropped
            and read again when memory is short. "read" reads the files into memory that stays.
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
            A directory to which the prefix cache is written in the background: prompts start from it after a restart,
            and in other processes that share it. Its files hold the prompts' token ids; other files in it are left
            alone. None keeps nothing.
        prefix_cache_disk_bytes : int
            Most bytes of the cache's files in the directory, whichever process or model wrote them.
        progress : callable or bool, optional
            For downloads from the Hub: called as ``progress(what, done_bytes, total_bytes)``; True or False shows
            a progress bar or not; None shows one where standard error is a terminal. A callable is also told of
            weights that are copied to a GPU with memory of its own, as ``progress("copying weights to the GPU",
            done_bytes, total_bytes)``, and of GPU kernels that are compiled while loading, as
            ``progress("compiling kernels", done, total)``.

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
        started = time.perf_counter()
        chosen = choose_backend(backend)
        cache_bytes = (
            default_cache_bytes()
            if prefix_cache_bytes is None
            else whole_number("prefix_cache_bytes", prefix_cache_bytes, 0)
        )
        interval = whole_number("snapshot_interval", snapshot_interval, 0)
        disk_bytes = whole_number("prefix_cache_disk_bytes", prefix_cache_disk_bytes, 0)
        cache_directory = None if prefix_cache_dir is None else cache_path(prefix_cache_dir)
        if cache_directory is not None and cache_bytes == 0:
            raise ConfigError("prefix_cache_dir needs a prefix cache: prefix_cache_bytes must not be 0")
        checkpoint = read_checkpoint(resolve_source(source, progress=progress))
        engine_options = make_engine_options(
            checkpoint,
            chosen,
            options,
            threads=threads,
            max_context=max_context,
            prefill_chunk=prefill_chunk,
            weights=weights,
            cpu_isa=cpu_isa,
            kv_cache_type=kv_cache_type,
            memory_limit=memory_limit,
        )
        told = progress if callable(progress) else _no_progress
        engine_options.copy_progress = partial(told, COPYING)
        engine_options.compile_progress = partial(told, COMPILING)
        native = _core.Model(native_config(checkpoint.config), native_source(checkpoint.source), engine_options)
        logger.info(
            "loaded %s in %.0f ms: %s",
            checkpoint.directory,
            1e3 * (time.perf_counter() - started),
            f"cpu backend, {native.options.cpu_isa} kernels, {native.options.threads} threads"
            if chosen == "cpu"
            else f"{chosen} backend",
        )
        if chosen != "cpu":
            tensors, size = _core.gpu.copied_weights(native)
            logger.info("%d tensors (%.1f MiB) were copied: they are not aligned in the files", tensors, size / 2**20)
        if max_context is None and native.options.max_context < checkpoint.config.max_position_embeddings:
            logger.info("max_context is %d: the GPU's memory has room for no more", native.options.max_context)
        model = cls(checkpoint, native, prefix_cache_bytes=cache_bytes, snapshot_interval=interval, gpu_options=options)
        if cache_directory is not None:
            model._cache._attach(DiskTier(model, cache_directory, disk_bytes), model._identity)
        return model

    # -- sessions --------------------------------------------------------------------------------------------------

    def session(self, *, seed: int | None = None) -> Session:
        """A new, empty session.

        Parameters
        ----------
        seed : int, optional
            Seed of its random draws, 0 to 2**64 - 1; random by default.
        """
        return self._open_objects.add_session(Session(self, _core.Session(self._open()), seed))

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

        The result is bit for bit that of ``model.prefill(ids)``; on a GPU only as far as no cached token was decoded,
        which rounds otherwise there. ``session.cached_tokens`` says how many leading tokens came from the cache. A
        prompt that is repeated exactly computes nothing.

        Later prompts can start where snapshots are taken: at the positions in `snapshot_at`, at the end of `ids`, every
        ``snapshot_interval`` tokens, and where `ids` leaves an earlier prompt. After a generation
        ``model.cache.insert(session)`` keeps its end as well.

        Parameters
        ----------
        ids : sequence of int
            Token ids of the whole prompt, at least one.
        snapshot_at : collection of int
            Numbers of leading tokens after which to take a snapshot: the end of system prompt and tools, and of each
            user turn before the assistant's header (thinking is dropped from there on when the next message comes).
            Those below what the cache holds are not taken again.
        progress : callable, optional
            Called as ``progress(done, total)``: first with the cached tokens, then after each chunk. An exception that
            it raises stops the call; what was computed is kept in the cache for the next try.
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
        """A session that goes on exactly where `Session.save` left it.

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
            The state in the file holds values that are NaN or infinite.
        ContextOverflowError
            The sequence is longer than this model's max_context.
        """
        own_seed = None if seed is None else check_seed(seed)
        snapshot, saved_seed = load_snapshot(as_path("path", path), self)
        session = self.session(seed=saved_seed if own_seed is None else own_seed)
        snapshot.restore_into(session._native)
        return session

    def decode(self, session: Session, token: int) -> npt.NDArray[np.float32]:
        """Append one token to a session: ``session.decode(token)``."""
        if not isinstance(session, Session):
            raise InvalidArgumentError(f"session must be a lily.Session, not a {type(session).__name__}")
        return session.decode(token)

    def close(self, *, timeout: float = DEFAULT_CLOSE_SECONDS) -> None:
        """Close all sessions and snapshots, empty the cache and unmap the weights. Closing twice is fine.

        Calls that run in other threads are cancelled, and waited for: each ends after its chunk or token, with
        `CancelledError`. What threads try from then on raises `ClosedError`. When several threads close the model, each
        returns when it is closed. What is not in ``prefix_cache_dir`` yet is written, for at most ten seconds.

        Parameters
        ----------
        timeout : float
            Most seconds to wait for those calls.

        Raises
        ------
        BusyError
            It was called within a call of this model, by a progress callback: nothing was changed. Or a call has not
            ended in time: the model takes no new calls, and `close` may be tried again.
        """
        deadline = time.monotonic() + real_number("timeout", timeout, 0)
        self._open_objects.refuse_own_call()
        if not self._close_lock.acquire(timeout=min(max(0.0, deadline - time.monotonic()), threading.TIMEOUT_MAX)):
            raise BusyError("the model is being closed by another thread, which waits for calls that have not ended")
        try:
            self._open_objects.close_all(deadline)
            try:
                self._cache._close_files()
            finally:
                self._cache._close()
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
            logger.warning("%s", error)  # what goes wrong in the block matters more

    # -- chat ------------------------------------------------------------------------------------------------------

    def chat(
        self,
        system: str | None = None,
        *,
        tools: Sequence[Mapping[str, Any] | Callable[..., Any]] | None = None,
        messages: Sequence[Mapping[str, Any]] = (),
        thinking: bool | None = True,
        preserve_thinking: bool = False,
        sampling: Sampling | str = "auto",
        **options: Any,
    ) -> Chat:
        """A new conversation; see `lily.chat.Chat`.

        Parameters
        ----------
        system : str, optional
            The system message.
        tools : sequence, optional
            Python functions, and definitions in OpenAI's form.
        messages : sequence of mappings
            What was said before.
        thinking : bool, optional
            Whether the model thinks before it answers; None leaves that to the template.
        preserve_thinking : bool
            Show the model its thinking of earlier turns.
        sampling : Sampling or str
            "auto" for the checkpoint's generation_config, or "thinking", "coding", "instruct", "reasoning".
        **options
            The other fields of `lily.chat.TurnOptions` as defaults of all turns; ``seed`` of the random draws;
            ``later_system`` ("refuse" or "convert") for system messages within the conversation; ``template_options``
            for more variables of the chat template.

        Raises
        ------
        InvalidArgumentError
            An option or a tool is not valid; the message names it.
        TokenizerError, TemplateError
            The checkpoint has no tokenizer or chat template.
        """
        from lily.chat import Chat

        return Chat(
            self,
            system=system,
            tools=tools,
            messages=messages,
            thinking=thinking,
            preserve_thinking=preserve_thinking,
            sampling=sampling,
            **options,
        )

    @cached_property
    def chat_support(self) -> ChatSupport:
        """What the chats of this model share."""
        from lily.chat.chat import ChatSupport

        return ChatSupport(self)

    # -- text ------------------------------------------------------------------------------------------------------

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The checkpoint's tokenizer; TokenizerError says what is missing where there is none."""
        return Tokenizer.from_directory(self._checkpoint.directory)

    @cached_property
    def chat_template(self) -> ChatTemplate:
        """The checkpoint's chat template; TemplateError says what is missing where there is none."""
        return ChatTemplate.from_directory(self._checkpoint.directory)

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **template_kwargs: Any,
    ) -> list[int]:
        """Token ids of a conversation, as the checkpoint's template writes it.

        The texts of control tokens, such as ``<|im_end|>``, are plain text where they stand in messages and tools, or
        come together from several of their texts. A history is taken as it is: arguments of calls that are no JSON
        object become the text of one parameter, lone surrogates U+FFFD, tool results without content empty ones, and
        empty answers at the end are left out where the model is to answer.

        Parameters
        ----------
        messages : sequence of mappings
            OpenAI-style messages: role, content, tool_calls, ...
        tools : sequence of mappings, optional
            Function definitions.
        add_generation_prompt : bool
            End with the opening of the assistant's turn.
        **template_kwargs
            Passed to the template, e.g. ``enable_thinking=False``.
        """
        guard, template = self.text_guard, self.chat_template
        prepared = prepare_messages(messages)
        add_generation_prompt = as_flag("add_generation_prompt", add_generation_prompt)
        if add_generation_prompt:
            prepared = answerable(prepared)
        text = guard.render(template, prepared, tools, add_generation_prompt=add_generation_prompt, **template_kwargs)
        return guard.encode(text)

    @cached_property
    def text_guard(self) -> TextGuard:
        """Renders conversations and encodes them so that no text in them acts as a control token."""
        return TextGuard(self.tokenizer)

    @cached_property
    def generation_defaults(self) -> GenerationDefaults:
        """What the checkpoint's generation_config.json says."""
        return read_generation_defaults(self._checkpoint.directory)

    @cached_property
    def default_sampling(self) -> Sampling:
        """Sampling as the checkpoint's generation_config.json asks; greedy where it says so."""
        defaults = self.generation_defaults
        if defaults.greedy:
            return Sampling.greedy()
        given = {
            name: value
            for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
            if (value := getattr(defaults, name)) is not None
        }
        return Sampling(**given)

    @cached_property
    def stop_tokens(self) -> frozenset[int]:
        """Ids that end a generation: the union of generation_config, config and tokenizer_config."""
        return read_stop_tokens(
            self._checkpoint.directory, vocab_size=self.config.vocab_size, tokenizer=self._optional_tokenizer
        )

    @property
    def sampled_vocab_size(self) -> int:
        """Ids below this may be sampled: the tokenizer's, or all rows of the head where there is no tokenizer."""
        tokenizer = self._optional_tokenizer
        return self.config.vocab_size if tokenizer is None else min(tokenizer.vocab_size, self.config.vocab_size)

    @cached_property
    def _optional_tokenizer(self) -> Tokenizer | None:
        # A directory without tokenizer files works with ids; one with a damaged tokenizer is an error.
        if not (self._checkpoint.directory / "tokenizer.json").exists():
            return None
        return self.tokenizer

    # -- what it is ------------------------------------------------------------------------------------------------

    @property
    def config(self) -> ModelConfig:
        """Dimensions of the model."""
        return self._checkpoint.config

    @property
    def checkpoint(self) -> Checkpoint:
        """The files it was loaded from, and what was skipped in them."""
        return self._checkpoint

    @property
    def max_context(self) -> int:
        """Most tokens that a session can hold."""
        return self._open().options.max_context

    @property
    def backend(self) -> str:
        """What computes: one of `available_backends`."""
        return self._open().options.backend

    @property
    def threads(self) -> int:
        """CPU threads in use."""
        return self._open().options.threads

    @property
    def cpu_isa(self) -> str:
        """Instruction set of the kernels in use."""
        return self._open().options.cpu_isa

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._native is None

    def plan(self, context: int | None = None) -> Plan:
        """Bytes that a session of `context` tokens needs, weights included; see `lily.plan`."""
        options = self._open().options
        return plan(
            self._checkpoint,
            options.max_context if context is None else context,
            threads=options.threads,
            prefill_chunk=options.prefill_chunk,
        )

    @property
    def scratch_bytes(self) -> int:
        """Bytes of working memory held now, besides the weights and the sessions' states."""
        return self._open().scratch_bytes

    def __repr__(self) -> str:
        name = self._checkpoint.directory.name
        if self.closed:
            return f"<lily.Model {name!r} closed>"
        layers = len(self.config.layer_types)
        cpu = f" isa={self.cpu_isa!r} threads={self.threads}" if self.backend == "cpu" else ""
        return f"<lily.Model {name!r} layers={layers} backend={self.backend!r}{cpu}>"

    def _repr_html_(self) -> str:
        from lily.notebook import model_html

        return model_html(self)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a lily.Model cannot be pickled: its weights are mapped in this process; load it there instead")

    def _track(self, snapshot: Snapshot) -> Snapshot:
        return self._open_objects.add_snapshot(snapshot)

    @property
    def _arithmetic(self) -> str:
        """What the bits of a state depend on besides the weights; states are not moved between two of these."""
        return arithmetic_of(self._open().options, self._gpu_options)

    @property
    def _fingerprint(self) -> str:
        """The weights' identity. When it is first needed, it may take as long as reading them."""
        return self._identity.get()

    def _open(self) -> _core.Model:
        if self._native is None:
            raise ClosedError("this model is closed; load it again with lily.Model.load()")
        return self._native
