"""A session: one sequence of tokens, its state, and the calls that extend it."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

import numpy as np
import numpy.typing as npt

from lily import _core
from lily.errors import BusyError, CancelledError, ClosedError, InvalidArgumentError
from lily.sampling import Sampling, check_seed

if TYPE_CHECKING:
    from lily.model import Model

__all__ = ["Progress", "Session"]

#: Called as ``progress(done, total)`` in tokens after every chunk of a long call.
Progress = Callable[[int, int], object]

Tokens = Sequence[int] | npt.NDArray[np.integer]


class Session:
    """One sequence of tokens with its KV cache and recurrent state. Made by `Model.session`.

    A session serves one caller at a time, from any thread; a second one gets `BusyError`. Sessions of one model may
    be used from several threads at once; the model computes their chunks in turn.
    """

    def __init__(self, model: Model, native: _core.Session, seed: int | None = None) -> None:
        self._model = model
        self._native = native
        self._seed = secrets.randbits(64) if seed is None else check_seed(seed)
        self._lock = threading.Lock()
        self._cancelled = threading.Event()
        # A token that generate() gave out and that is not computed yet: part of the sequence all the same.
        self._pending: list[int] = []

    # -- extending the sequence ------------------------------------------------------------------------------------

    def prefill(self, ids: Tokens, *, progress: Progress | None = None) -> npt.NDArray[np.float32]:
        """Append tokens and compute the logits that follow the last one.

        Parameters
        ----------
        ids : sequence of int
            Token ids, at least one. Earlier tokens of the session stay: a prompt may be given in parts.
        progress : callable, optional
            Called as ``progress(done, total)`` after each chunk. An exception that it raises stops the call.

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
        BusyError, ClosedError
            Another call uses the session, or it is closed.
        """
        array = as_token_ids(ids)
        with self._entry() as native:
            if self._pending:
                array = np.concatenate([np.asarray(self._pending, dtype=np.int32), array])
            before = native.position
            try:
                native.prefill(array, self._between_chunks(progress))
            finally:
                if native.position > before:
                    self._pending.clear()
            return _logits(native)

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
        array = as_token_ids([token])
        with self._entry() as native:
            self._compute_pending(native)
            native.decode(int(array[0]))
            return _logits(native)

    def generate(
        self,
        max_tokens: int | None = None,
        *,
        sampling: Sampling | None = None,
        stop_tokens: Collection[int] | None = None,
    ) -> Iterator[int]:
        """Sample tokens one after the other, starting from the current logits.

        Every token that the iterator yields is part of the session; the stop token that ends it is not. Leaving the
        loop early is fine.

        Parameters
        ----------
        max_tokens : int, optional
            Stop after that many tokens; None: when the context is full.
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
        if max_tokens is not None and max_tokens < 0:
            raise InvalidArgumentError(f"max_tokens must be at least 0, not {max_tokens}")
        chosen = self._model.default_sampling if sampling is None else sampling
        stops = self._model.stop_tokens if stop_tokens is None else frozenset(stop_tokens)
        return self._generate(max_tokens, chosen, stops)

    def _generate(self, max_tokens: int | None, sampling: Sampling, stops: Collection[int]) -> Iterator[int]:
        native_sampling = sampling._native()
        seed = self._seed if sampling.seed is None else sampling.seed
        remaining = self._model.max_context - self.position
        if max_tokens is not None:
            remaining = min(remaining, max_tokens)
        expected = self.position
        self._cancelled.clear()
        for _ in range(remaining):
            with self._entry(keep_cancel=True) as native:
                if native.position + len(self._pending) != expected:
                    raise InvalidArgumentError("the session was changed while generate() was in use; start it again")
                self._raise_if_cancelled()
                self._compute_pending(native)
                token = native.sample(native_sampling, seed, self._model.sampled_vocab_size)
                if token in stops:
                    return
                self._pending.append(token)
            expected += 1
            yield token

    def score(self, ids: Tokens, *, progress: Progress | None = None, return_argmax: bool = False) -> Scores:
        """Log-probabilities of a text, teacher-forced from an empty sequence; the session stays as it is.

        Parameters
        ----------
        ids : sequence of int
            At least two token ids.
        progress : callable, optional
            As in `prefill`.
        return_argmax : bool
            Return the most probable token of each position as well.

        Returns
        -------
        numpy.ndarray or (numpy.ndarray, numpy.ndarray)
            Natural logarithms of the probabilities of ``ids[1:]``, float32 [len(ids) - 1]; with `return_argmax` also
            the most probable ids, int32 [len(ids) - 1]. The perplexity is ``exp(-mean)``.
        """
        array = as_token_ids(ids)
        with self._entry() as native:
            log_probabilities, argmax = native.score(array, self._between_chunks(progress))
        return (log_probabilities, argmax) if return_argmax else log_probabilities

    # -- control ---------------------------------------------------------------------------------------------------

    def cancel(self) -> None:
        """Stop the call that runs in another thread, after its current chunk or token; it raises CancelledError."""
        self._cancelled.set()

    def reset(self) -> None:
        """Back to the empty sequence. Memory is kept for reuse."""
        with self._entry() as native:
            native.reset()
            self._pending.clear()

    def close(self) -> None:
        """Free the state. Closing twice is fine; any other use afterwards raises ClosedError."""
        if not self._native.closed:
            with self._entry() as native:
                native.close()

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
        return self._native.position + len(self._pending)

    @property
    def tokens(self) -> list[int]:
        """The token ids of the sequence."""
        return self._native.tokens + self._pending

    @property
    def logits(self) -> npt.NDArray[np.float32] | None:
        """Logits that follow the last computed token, float32 [vocab_size]; None before the first prefill."""
        return self._native.logits

    @property
    def state_bytes(self) -> int:
        """Bytes of state held now: KV caches, recurrent and convolution states."""
        return self._native.state_bytes

    def __repr__(self) -> str:
        if self._native.closed:
            return "<lily.Session closed>"
        try:
            return f"<lily.Session position={self.position} state_bytes={self.state_bytes}>"
        except BusyError:
            return "<lily.Session in use>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a lily.Session cannot be pickled: its state lives in this process; keep session.tokens instead")

    # -- helpers ---------------------------------------------------------------------------------------------------

    @contextmanager
    def _entry(self, keep_cancel: bool = False) -> Iterator[_core.Session]:
        if not self._lock.acquire(blocking=False):
            raise BusyError(
                "this session is in use by another call; a session serves one caller at a time, make one session for "
                "each thread"
            )
        try:
            if self._native.closed:
                raise ClosedError("this session is closed; make a new one with model.session()")
            if not keep_cancel:
                self._cancelled.clear()
            yield self._native
        finally:
            self._lock.release()

    def _compute_pending(self, native: _core.Session) -> None:
        if self._pending:
            native.decode(self._pending[0])
            self._pending.clear()

    def _raise_if_cancelled(self) -> None:
        if self._cancelled.is_set():
            raise CancelledError("the call was cancelled; the session holds what was computed before")

    def _between_chunks(self, progress: Progress | None) -> Progress:
        def between_chunks(done: int, total: int) -> None:
            if done < total:
                self._raise_if_cancelled()
            if progress is not None:
                progress(done, total)

        return between_chunks


Scores = npt.NDArray[np.float32] | tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]


def as_token_ids(ids: Tokens) -> npt.NDArray[np.int32]:
    """Token ids as a contiguous int32 array; anything else than a flat sequence of ids is refused."""
    array = np.asarray(ids)
    if array.ndim != 1:
        raise InvalidArgumentError(f"token ids must be a flat sequence, not an array of shape {array.shape}")
    if array.size == 0:
        raise InvalidArgumentError("no token ids were given; at least one is needed")
    if array.dtype.kind not in "iu":
        raise InvalidArgumentError(f"token ids must be integers, not {array.dtype}")
    limits = np.iinfo(np.int32)
    if int(array.min()) < limits.min or int(array.max()) > limits.max:
        raise InvalidArgumentError("a token id does not fit in 32 bits")
    return np.ascontiguousarray(array, dtype=np.int32)


def _logits(native: _core.Session) -> npt.NDArray[np.float32]:
    logits = native.logits
    assert logits is not None  # a call that returned has computed them
    return logits
