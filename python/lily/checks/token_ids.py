"""The checks of token ids that callers give."""

from __future__ import annotations

import operator
import sys
from collections.abc import Collection, Sequence, Sized
from typing import Any

import numpy as np
import numpy.typing as npt

from lily.checks.arguments import as_items
from lily.checks.quoting import quoted
from lily.errors import ContextOverflowError, InvalidArgumentError

__all__ = ["Tokens", "as_stop_ids", "as_token_ids"]

_MOST_IDS = 1 << 22

Tokens = Sequence[int] | npt.NDArray[np.integer]


def as_token_ids(ids: Tokens, max_context: int | None = None) -> npt.NDArray[np.int32]:
    """Token ids as a new int32 array; refuses anything but a flat sequence of ids.

    If there are more ids than `max_context`, or than any context has, nothing is copied.
    """
    _check_length(ids, max_context)
    try:
        array = np.asarray(ids)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise InvalidArgumentError(f"token ids must be a flat sequence of integers: {error}") from None
    except MemoryError:
        raise InvalidArgumentError("there is not enough memory for so many token ids") from None
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
    """Stop tokens as ids, without those that no vocabulary has, since they can never occur."""
    try:
        given = as_items("stop_tokens", ids, "a collection of token ids")
        return sorted({value for value in map(operator.index, given) if 0 <= value < 1 << 31})
    except TypeError:
        raise InvalidArgumentError(f"stop_tokens must be a collection of token ids, not {quoted(ids)}") from None


def _check_length(ids: object, max_context: int | None) -> None:
    length = _length(ids)
    if length > (_MOST_IDS if max_context is None else max_context):
        if max_context is None:
            raise InvalidArgumentError(f"{length:,} token ids were given; no context has more than {_MOST_IDS:,}")
        raise ContextOverflowError(
            f"the sequence has {length} tokens and the maximum context is {max_context} (max_context of Model.load)"
        )
    if isinstance(ids, (list, tuple)) and any(issubclass(kind, Sized) for kind in set(map(type, ids))):
        _check_nested([item for item in ids if isinstance(item, Sized)])


def _check_nested(items: list[Sized]) -> None:
    """NumPy copies the contents of nested sequences before it reports that they are nested."""
    deeper = any(isinstance(one, Sized) for item in items if isinstance(item, (list, tuple)) for one in item)
    if deeper or sum(map(_length, items)) > _MOST_IDS:
        raise InvalidArgumentError("token ids must be a flat sequence of integers, not a nested one")


def _length(value: object) -> int:
    """The length of anything that has one; 0 for everything else, which is refused later."""
    try:
        return len(value) if isinstance(value, Sized) else 0
    except OverflowError:  # a range longer than any list
        return sys.maxsize
    except Exception:  # a value's own method
        return 0


def _name_of_other_type(array: npt.NDArray[Any]) -> str:
    if array.dtype == object:
        return next((type(value).__name__ for value in array if not isinstance(value, int)), "so large")
    return str(array.dtype)
