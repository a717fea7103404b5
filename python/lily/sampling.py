"""Sampling parameters: how the next token is chosen from the logits."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lily import _core
from lily.checks.quoting import quoted
from lily.checks.whole_numbers import whole_number
from lily.errors import InvalidArgumentError

__all__ = ["Sampling"]


@dataclass(frozen=True)
class Sampling:
    """How to choose the next token: first penalties and bias, then the filters in the order of the fields.

    The penalties count the tokens of the whole output so far, and none of the prompt.

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
    presence_penalty : float
        Subtracted from the logit of each token that is in the output.
    frequency_penalty : float
        Subtracted from a token's logit once for each time that it is in the output.
    repetition_penalty : float
        Divides the positive logits and multiplies the negative ones of tokens that are in the output, once; 1 turns
        it off (Keskar et al., arXiv 1909.05858).
    logit_bias : mapping, optional
        Added to the logits of these token ids; ``-math.inf`` forbids a token.

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
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        if self.logit_bias is not None:
            object.__setattr__(self, "logit_bias", _checked_bias(self.logit_bias))
        for name in _REAL:
            object.__setattr__(self, name, _as_float(name, getattr(self, name)))
        object.__setattr__(self, "top_k", whole_number("top_k", self.top_k, 0, error_type=InvalidArgumentError))
        self.to_core().validate()
        if self.seed is not None:
            object.__setattr__(self, "seed", check_seed(self.seed))

    @classmethod
    def greedy(cls) -> Sampling:
        """Always the most probable token."""
        return cls(temperature=0.0)

    @classmethod
    def profile(cls, name: str) -> Sampling:
        """The model card's recommendation for a kind of work.

        Parameters
        ----------
        name : {"thinking", "coding", "instruct", "reasoning"}
            Thinking in general; thinking for precise coding; answers without thinking; reasoning tasks without
            thinking.

        Raises
        ------
        InvalidArgumentError
            There is no such profile; the message lists them.
        """
        if not isinstance(name, str) or name not in _PROFILES:
            raise InvalidArgumentError(
                f"there is no sampling profile {quoted(name)}; the profiles are {', '.join(_PROFILES)}"
            )
        return _PROFILES[name]

    def to_core(self) -> _core.Sampling:
        """The core's copy."""
        return _core.Sampling(
            self.temperature,
            self.top_k,
            self.top_p,
            self.min_p,
            self.presence_penalty,
            self.frequency_penalty,
            self.repetition_penalty,
            sorted((self.logit_bias or {}).items()),
        )


def check_seed(seed: int) -> int:
    """Return `seed` if it is an integer of 64 bits without sign, else raise InvalidArgumentError."""
    return whole_number("seed", seed, 0, (1 << 64) - 1, InvalidArgumentError)


def _as_float(name: str, value: Any) -> float:
    """The value as a float; its range is checked by the core."""
    try:
        if not isinstance(value, (bool, np.bool_, str, bytes, bytearray)) and np.ndim(value) == 0:
            return float(value)
    except (TypeError, ValueError, ArithmeticError):
        pass
    raise InvalidArgumentError(
        f"temperature, top_p, min_p and the penalties must be numbers, but {name} is {quoted(value)}"
    )


class _Biases(dict[int, float]):
    """Checked biases, so that a copy of a `Sampling` need not check each of them again."""


def _checked_bias(bias: Mapping[int, float]) -> dict[int, float]:
    if isinstance(bias, _Biases):
        return bias
    if not isinstance(bias, Mapping):
        raise InvalidArgumentError(f"logit_bias must map token ids to numbers, not {quoted(bias)}")
    if {*map(type, bias)} <= {int} and {*map(type, bias.values())} <= {int, float}:
        checked = _Biases(bias)
        if not checked or (min(checked) >= 0 and max(checked) < 1 << 31):
            try:
                checked.update(zip(bias, map(float, bias.values()), strict=True))
            except OverflowError:
                pass  # told below
            else:
                return checked
    checked = _Biases()
    for token, value in bias.items():
        try:
            number = operator.index(token)
            if isinstance(token, bool) or isinstance(value, (bool, str, bytes, bytearray)):
                raise TypeError
            checked[number] = float(value)
        except (TypeError, ValueError, ArithmeticError):
            raise InvalidArgumentError(
                f"logit_bias must map token ids to numbers, not {quoted(token)} to {quoted(value)}"
            ) from None
        if not 0 <= number < 1 << 31:
            raise InvalidArgumentError(f"logit_bias contains the id {quoted(number)}, which is not a token")
    return checked


_REAL = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
_PROFILES = {
    "thinking": Sampling(temperature=1.0, top_p=0.95, top_k=20, presence_penalty=1.5),
    "coding": Sampling(temperature=0.6, top_p=0.95, top_k=20),
    "instruct": Sampling(temperature=0.7, top_p=0.80, top_k=20, presence_penalty=1.5),
    "reasoning": Sampling(temperature=1.0, top_p=1.0, top_k=40, presence_penalty=2.0),
}
