"""Sampling parameters: how the next token is chosen from the logits."""

from __future__ import annotations

import operator
from dataclasses import dataclass

from lily import _core
from lily.errors import InvalidArgumentError

__all__ = ["Sampling"]


@dataclass(frozen=True)
class Sampling:
    """How to choose the next token; the filters apply in the order of the fields.

    Parameters
    ----------
    temperature : float
        Divides the logits; 0 is greedy (the most probable token, the lower id on ties).
    top_k : int
        Keep the `top_k` most probable tokens; 0 turns the filter off.
    top_p : float
        Keep the smallest set of most probable tokens whose probabilities sum to `top_p`
        (Holtzman et al., arXiv 1904.09751); 1 turns the filter off.
    min_p : float
        Keep tokens with at least `min_p` times the probability of the most probable one; 0 turns it off.
    seed : int, optional
        Seed of the draws, 0 to 2**64 - 1. The draw for a position depends on the seed and the position alone,
        not on what was computed before. None takes the session's seed.

    Raises
    ------
    InvalidArgumentError
        A field is out of its range; the message names it.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None

    def __post_init__(self) -> None:
        try:
            self._native().validate()
        except TypeError:
            raise InvalidArgumentError(
                f"temperature, top_p and min_p must be numbers and top_k an integer of at most 2**63 - 1, not {self}"
            ) from None
        if self.seed is not None:
            object.__setattr__(self, "seed", check_seed(self.seed))

    @classmethod
    def greedy(cls) -> Sampling:
        """The most probable token, always."""
        return cls(temperature=0.0)

    def _native(self) -> _core.Sampling:
        return _core.Sampling(self.temperature, self.top_k, self.top_p, self.min_p)


def check_seed(seed: int) -> int:
    """Return `seed` if it is an integer of 64 bits without sign, else raise InvalidArgumentError."""
    try:
        value = -1 if isinstance(seed, bool) else operator.index(seed)
    except TypeError:
        value = -1
    if not 0 <= value < 1 << 64:
        raise InvalidArgumentError(f"seed must be an integer between 0 and 2**64 - 1, not {seed!r}")
    return value
