"""The arrays that sessions hand out: not copied, read-only, and never changed by what is computed later."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import lily
from engine_helpers import VOCAB, random_ids


def test_type_and_ownership(session: lily.Session) -> None:
    for logits in (session.prefill([1, 2, 3]), session.decode(4), session.logits):
        assert isinstance(logits, np.ndarray)
        assert (logits.dtype, logits.shape) == (np.float32, (VOCAB,))
        assert logits.flags.c_contiguous and logits.flags.aligned
        assert not logits.flags.owndata and logits.base is not None


def test_read_only(session: lily.Session) -> None:
    logits = session.prefill([1, 2, 3])
    with pytest.raises(ValueError, match="read-only"):
        logits[0] = 1.0
    with pytest.raises(ValueError, match="WRITEABLE"):
        logits.flags.writeable = True


def test_no_copy(session: lily.Session) -> None:
    returned = session.prefill([1, 2, 3])
    again = session.logits
    assert again is not None and np.shares_memory(returned, again)


def test_buffer_is_reused_when_nobody_holds_it(session: lily.Session) -> None:
    session.prefill([1, 2, 3])
    gc.collect()
    places = {session.decode(token).__array_interface__["data"][0] for token in random_ids(10)}
    assert len(places) == 1


def test_earlier_arrays_keep_their_values(session: lily.Session) -> None:
    arrays = [session.prefill(random_ids(5))]
    copies = [arrays[0].copy()]
    for token in random_ids(6, 1):
        arrays.append(session.decode(token))
        copies.append(arrays[-1].copy())
    session.reset()
    arrays.append(session.prefill([9]))
    copies.append(arrays[-1].copy())
    list(session.generate(max_tokens=4, stop_tokens=()))
    assert all(np.array_equal(array, copy) for array, copy in zip(arrays, copies, strict=True))
    assert len({copy.tobytes() for copy in copies}) == len(copies)


def test_arrays_outlive_the_session(model: lily.Model) -> None:
    session = model.session()
    logits = session.prefill([1, 2, 3])
    copy = logits.copy()
    session.close()
    del session
    gc.collect()
    with model.session() as other:
        other.prefill([5, 6])
    assert np.array_equal(logits, copy)


def test_none_before_the_first_prefill(session: lily.Session) -> None:
    assert session.logits is None
    assert (session.position, session.tokens) == (0, [])
