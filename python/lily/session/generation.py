"""A running generation: sampled tokens, with log-probabilities, masks and forced tokens."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from lily import _core
from lily.checks.arguments import as_stream, check_callable
from lily.checks.token_ids import as_token_ids
from lily.errors import InvalidArgumentError
from lily.sampling import Sampling

if TYPE_CHECKING:
    from lily.session import Session

__all__ = ["GeneratedToken", "Generation", "TokenMask"]

#: Called before each token: bit ``id % 32`` of word ``id // 32`` allows an id, uint32; None allows all.
TokenMask = Callable[[], "npt.NDArray[np.uint32] | None"]


@dataclass(frozen=True)
class GeneratedToken:
    """A sampled token.

    Attributes
    ----------
    id : int
        The token.
    logprob : float, optional
        Natural logarithm of its probability under the unmodified logits; None unless it was requested.
    top_logprobs : tuple of (int, float)
        The most probable tokens and their logarithms, as many as were requested.
    """

    id: int
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()


class Generation(Iterator[GeneratedToken]):
    """Iterates over the tokens as they are sampled. Made by `Session.generation`.

    Every token that it yields is part of the session; the stop token that ends it is not.

    Attributes
    ----------
    mask : callable, optional
        Decides which tokens are allowed next; may be set between tokens.
    finish_reason : {"stop", "length"}, optional
        None while the generation runs.
    stop_token : GeneratedToken, optional
        The stop token that ended it.
    tokens : list of int
        The output so far, forced tokens included.
    """

    def __init__(
        self,
        session: Session,
        *,
        limit: int,
        sampling: Sampling,
        seed: int,
        stop_tokens: Sequence[int],
        logprobs: int | None,
        mask: TokenMask | None,
    ) -> None:
        self.mask = mask
        self.finish_reason: Literal["stop", "length"] | None = None
        self.stop_token: GeneratedToken | None = None
        self.tokens: list[int] = []
        self._session = session
        self._limit = limit
        self._with_logprobs = logprobs is not None
        self._candidates = session.model.sampled_vocab_size
        self._request = _core.TokenRequest(
            sampling.to_core(), seed, self._candidates, stop_tokens, session.position, logprobs
        )
        self._revision = session.core.begin_generation()

    def __next__(self) -> GeneratedToken:
        if self.finish_reason is not None:
            raise StopIteration
        if len(self.tokens) >= self._limit:
            self.finish_reason = "length"
            raise StopIteration
        check_callable("mask", self.mask)
        mask = None if self.mask is None else self._checked(self.mask())
        choice = self._session.core.next_token(self._request, mask, self._revision)
        token = (
            GeneratedToken(choice.token, choice.logprob, tuple(choice.top_logprobs))
            if self._with_logprobs
            else GeneratedToken(choice.token)
        )
        if choice.stops:
            self.finish_reason, self.stop_token = "stop", token
            raise StopIteration
        self._revision += 1
        self.tokens.append(token.id)
        return token

    def force(self, ids: Sequence[int]) -> list[int]:
        """Append tokens to the output as if they had been sampled, up to the limit.

        Returns
        -------
        list of int
            The tokens that were appended.

        Raises
        ------
        InvalidArgumentError, CancelledError, BusyError, ClosedError
            As `Session.prefill`.
        """
        room = self._limit - len(self.tokens)
        given = list(itertools.islice(as_stream("ids", ids, "a list of token ids"), room + 1))
        if given:
            given = as_token_ids(given).tolist()
        fitting = given[:room]
        if fitting and self.finish_reason is None:
            self._session.prefill(fitting)
            self._revision = self._session.core.begin_generation()
            self.tokens += fitting
            return fitting
        return []

    def _checked(self, mask: npt.NDArray[np.uint32] | None) -> npt.NDArray[np.uint32] | None:
        if mask is None:
            return None
        words = (self._candidates + 31) // 32
        if not isinstance(mask, np.ndarray):
            raise InvalidArgumentError(
                f"a mask must be a NumPy array, uint32 of shape [{words}] or more, not a {type(mask).__name__}"
            )
        if mask.dtype != np.uint32 or mask.ndim != 1 or mask.size < words:
            raise InvalidArgumentError(
                f"a mask must be uint32 of shape [{words}] or more, not {mask.dtype} of shape {list(mask.shape)}"
            )
        return np.ascontiguousarray(mask)
