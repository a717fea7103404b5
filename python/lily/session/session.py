"""A session: one sequence of tokens, its state, and the calls that extend it."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterator
from os import PathLike
from typing import TYPE_CHECKING, NoReturn

import numpy as np
import numpy.typing as npt

from lily import _core
from lily.checks.arguments import as_flag, as_path, check_callable
from lily.checks.token_ids import Tokens, as_stop_ids, as_token_ids
from lily.checks.whole_numbers import as_count
from lily.errors import BusyError, ClosedError, InvalidArgumentError
from lily.sampling import Sampling, check_seed
from lily.session.generation import Generation, TokenMask
from lily.session.progress import Progress, checked_progress
from lily.session.session_file import save_snapshot
from lily.session.snapshot import Snapshot

if TYPE_CHECKING:
    from lily.model import Model

__all__ = ["Session"]


class Session:
    """One sequence of tokens with its KV cache and recurrent state. Made by `Model.session`.

    A session serves one caller at a time, from any thread; a second caller gets `BusyError`. Sessions of one model may
    be used from several threads at once; the model computes their chunks in turn.
    """

    def __init__(self, model: Model, native: _core.Session, seed: int | None = None) -> None:
        self._model = model
        self.core = native  #: for Lily's own modules
        self._seed = secrets.randbits(64) if seed is None else check_seed(seed)
        #: Number of leading tokens that came from the prefix cache; see `Model.cached_session`.
        self.cached_tokens = 0

    # -- extending the sequence ------------------------------------------------------------------------------------

    def prefill(self, ids: Tokens, *, progress: Progress | None = None) -> npt.NDArray[np.float32]:
        """Append tokens and compute the logits that follow the last one.

        Parameters
        ----------
        ids : sequence of int
            Token ids, at least one. Earlier tokens of the session stay: a prompt may be given in parts.
        progress : callable, optional
            Called as ``progress(done, total)`` after each chunk. An exception from it stops the call.

        Returns
        -------
        numpy.ndarray
            Logits of the last position, float32 [vocab_size], read-only and not copied.

        Raises
        ------
        InvalidArgumentError
            No ids, or an id outside the vocabulary. The session is unchanged.
        ContextOverflowError
            The ids do not fit in the context. The session is unchanged.
        CancelledError, KeyboardInterrupt
            `cancel` was called, or Ctrl-C. The chunks computed before are part of the session: continue with
            ``prefill(ids[session.position - start:])``.
        NonFiniteError
            The logits are NaN or infinite; the message names the first place. The session is unusable until `reset`.
        BusyError, ClosedError
            Another call uses the session, or it is closed.
        """
        return self.core.prefill(as_token_ids(ids, self._model.max_context), checked_progress(progress))

    def decode(self, token: int) -> npt.NDArray[np.float32]:
        """Append one token and compute the logits that follow it.

        Returns
        -------
        numpy.ndarray
            Logits, float32 [vocab_size], read-only and not copied.

        Raises
        ------
        InvalidArgumentError, ContextOverflowError, BusyError, ClosedError
            As `prefill`.
        """
        return self.core.decode(int(as_token_ids([token])[0]))

    def generate(
        self,
        max_tokens: int | None = None,
        *,
        sampling: Sampling | None = None,
        stop_tokens: Collection[int] | None = None,
    ) -> Iterator[int]:
        """Sample tokens one at a time, starting from the current logits.

        Every token that the iterator yields is part of the session; the stop token that ends it is not. Leaving the
        loop early is fine.

        Parameters
        ----------
        max_tokens : int, optional
            Stop after that many tokens; None: stop when the context is full.
        sampling : Sampling, optional
            None takes the checkpoint's generation_config.
        stop_tokens : collection of int, optional
            Ids that end the generation; None takes the model's, empty means none.

        Yields
        ------
        int
            The next token id.

        Raises
        ------
        InvalidArgumentError
            There are no logits yet, or another call changed the session while the iterator was in use.
        CancelledError, BusyError, ClosedError
            As `prefill`.
        """
        generation = self.generation(max_tokens, sampling=sampling, stop_tokens=stop_tokens)
        return (token.id for token in generation)

    def generation(
        self,
        max_tokens: int | None = None,
        *,
        sampling: Sampling | None = None,
        stop_tokens: Collection[int] | None = None,
        logprobs: int | None = None,
        mask: TokenMask | None = None,
    ) -> Generation:
        """Like `generate`, with log-probabilities and more control.

        Parameters
        ----------
        max_tokens, sampling, stop_tokens
            As in `generate`.
        logprobs : int, optional
            Report the log-probability of each token and of that many most probable alternatives.
        mask : callable, optional
            Called before each token; returns the allowed ids as an array of uint32 (bit ``id % 32`` of word
            ``id // 32``), or None for all.

        Returns
        -------
        Generation
            Iterates over `GeneratedToken`; `Generation.force` appends the caller's tokens to the output.
        """
        limit = None if max_tokens is None else as_count("max_tokens", max_tokens)
        chosen = self._model.default_sampling if sampling is None else sampling
        if not isinstance(chosen, Sampling):
            raise InvalidArgumentError(f"sampling must be a lily.Sampling, not a {type(sampling).__name__}")
        check_callable("mask", mask)
        stops = self._model.stop_tokens if stop_tokens is None else stop_tokens
        remaining = self._model.max_context - self.position
        return Generation(
            self,
            limit=remaining if limit is None else min(limit, remaining),
            sampling=chosen,
            seed=self._seed if chosen.seed is None else chosen.seed,
            stop_tokens=as_stop_ids(stops),
            logprobs=None if logprobs is None else as_count("logprobs", logprobs),
            mask=mask,
        )

    def score(
        self,
        ids: Tokens,
        *,
        progress: Progress | None = None,
        return_argmax: bool = False,
        targets: Tokens | None = None,
    ) -> Scores:
        """Log-probabilities of a text, teacher-forced from an empty sequence; the session is unchanged.

        Parameters
        ----------
        ids : sequence of int
            At least two token ids.
        progress : callable, optional
            As in `prefill`.
        return_argmax : bool
            Also return the most probable token of each position.
        targets : sequence of int, optional
            Tokens to score instead, one for each of ``ids[1:]``.

        Returns
        -------
        numpy.ndarray or (numpy.ndarray, numpy.ndarray)
            Natural logarithms of the probabilities of ``ids[1:]``, or of `targets`, float32 [len(ids) - 1]; with
            `return_argmax` also the most probable ids, int32 [len(ids) - 1]. The perplexity is ``exp(-mean)``.
        """
        with_argmax = as_flag("return_argmax", return_argmax)
        given = as_token_ids(ids, self._model.max_context)
        wanted = None if targets is None else as_token_ids(targets, self._model.max_context)
        if wanted is not None and len(wanted) == 0:
            raise InvalidArgumentError("targets must not be empty")
        log_probabilities, argmax = self.core.score(given, checked_progress(progress), wanted)
        return (log_probabilities, argmax) if with_argmax else log_probabilities

    # -- branching, going back, saving -----------------------------------------------------------------------------

    def fork(self, seed: int | None = None) -> Session:
        """A new, independent session that continues from here.

        Keys and values are shared; only the recurrent states are copied, once one of the two continues. Both sessions
        compute exactly what they would have computed alone, bit for bit.

        Parameters
        ----------
        seed : int, optional
            Seed of the new session's random draws; random by default.
        """
        snapshot = _core.Snapshot.take(self.core, True)
        session = self._model.session(seed=seed)
        snapshot.restore_into(session.core)
        return session

    def snapshot(self) -> Snapshot:
        """The current sequence, to `restore` later in this session or another one of the model.

        Raises
        ------
        BusyError, ClosedError
            Another call uses the session, or it is closed.
        """
        return self._model.open_objects.add_snapshot(Snapshot(self._model, _core.Snapshot.take(self.core, True)))

    def restore(self, snapshot: Snapshot) -> None:
        """Switch to a snapshot: tokens, state and logits become those of the snapshot.

        Raises
        ------
        InvalidArgumentError
            The snapshot belongs to another model. The session is unchanged.
        BusyError, ClosedError
            Another call uses the session; or it, or the snapshot, is closed.
        """
        if not isinstance(snapshot, Snapshot):
            raise InvalidArgumentError(f"snapshot must be a lily.Snapshot, not a {type(snapshot).__name__}")
        snapshot.core.restore_into(self.core)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the sequence and its state to a file from which `Model.load_session` continues exactly.

        The file is a safetensors file. It is replaced in one step when complete; a crash leaves the old one.

        Raises
        ------
        OSError
            The file cannot be written; an older one is still there.
        CheckpointError
            The weights' files were replaced or changed since the model was loaded, and their hash is not known.
        NonFiniteError
            The state contains values that are NaN or infinite.
        BusyError, ClosedError
            Another call uses the session, or it is closed.
        """
        save_snapshot(as_path("path", path), self._model, _core.Snapshot.take(self.core, True), self._seed)

    # -- control ---------------------------------------------------------------------------------------------------

    def cancel(self) -> None:
        """Stop the call that runs in another thread, after its current chunk or token; it raises CancelledError."""
        self.core.cancel()

    def reset(self) -> None:
        """Return to the empty sequence. Memory is kept for reuse."""
        self.core.reset()

    def close(self) -> None:
        """Free the state. Closing twice is fine; any other use afterwards raises ClosedError."""
        self.core.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- what it holds ---------------------------------------------------------------------------------------------

    @property
    def model(self) -> Model:
        """The model that the session belongs to."""
        return self._model

    @property
    def position(self) -> int:
        """Number of tokens in the sequence."""
        return self.core.position

    @property
    def tokens(self) -> list[int]:
        """The token ids of the sequence."""
        return self.core.tokens

    @property
    def logits(self) -> npt.NDArray[np.float32] | None:
        """Logits that follow the last computed token, float32 [vocab_size]; None before the first prefill."""
        return self.core.logits

    @property
    def state_bytes(self) -> int:
        """Bytes of state held now: KV caches, recurrent and convolution states."""
        return self.core.state_bytes

    def __repr__(self) -> str:
        if self.core.closed:
            return "<lily.Session closed>"
        try:
            return f"<lily.Session position={self.position} state_bytes={self.state_bytes}>"
        except BusyError:
            return "<lily.Session in use>"
        except ClosedError:  # meanwhile, by another thread
            return "<lily.Session closed>"

    def _repr_html_(self) -> str:
        from lily.display import session_html

        return session_html(self)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a lily.Session cannot be pickled: its state is in this process; keep session.tokens instead")


Scores = npt.NDArray[np.float32] | tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]
