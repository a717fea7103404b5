"""The checks of token ids that callers give."""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lily.arguments import as_items
from lily.errors import InvalidArgumentError
from lily.quoting import quoted

__all__ = ["Tokens", "as_stop_ids", "as_token_ids"]

Tokens = Sequence[int] | npt.NDArray[np.integer]


def as_token_ids(ids: Tokens) -> npt.NDArray[np.int32]:
    """Token ids as an int32 array of their own; anything else than a flat sequence of ids is refused."""
    try:
        array = np.asarray(ids)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise InvalidArgumentError(f"token ids must be a flat sequence of integers: {error}") from None
    if array.ndim != 1:
        given = f"an array of shape {array.shape}" if array.ndim else type(ids).__name__
        raise InvalidArgumentError(f"token ids must be a flat sequence of integers, not {given}")
    if array.size == 0:
        raise InvalidArgumentError("no token ids were given; at least one is needed")
    if array.dtype.kind not in "iu":
        raise InvalidArgumentError(f"token ids must be integers, not {_name_of_other_type(array)}")
    limits = np.iinfo(np.int32)
    for extreme in (int(array.min()), int(array.max())):
        if not limits.min <= extreme <= limits.max:
            raise InvalidArgumentError(f"token id {extreme} is outside the vocabulary")
    return array.astype(np.int32)  # a copy: the caller's array may change while the ids are computed


def as_stop_ids(ids: Collection[int]) -> list[int]:
    """Stop tokens as ids; those that no vocabulary has are left out, as they never come."""
    try:
        given = as_items("stop_tokens", ids, "a collection of token ids")
        return sorted({value for value in map(operator.index, given) if 0 <= value < 1 << 31})
    except TypeError:
        raise InvalidArgumentError(f"stop_tokens must be a collection of token ids, not {quoted(ids)}") from None


def _name_of_other_type(array: npt.NDArray[Any]) -> str:
    if array.dtype == object:
        return next((type(value).__name__ for value in array if not isinstance(value, int)), "so large")
    return str(array.dtype)
