"""embed_rows against the dequantized rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from quantized import Matrix, random_matrix

from device_runner import pack, run, sim
from lily_args import ARGS

VOCABULARY = 37
FORMATS = [(4, 32), (4, 64), (4, 128), (8, 32), (8, 64), (8, 128), (16, 64)]


def make_matrix(bits: int, group_size: int, hidden_size: int) -> Matrix:
    return random_matrix(
        np.random.default_rng([bits, group_size, hidden_size]), VOCABULARY, hidden_size, bits, group_size
    )


def embed(device: Any, matrix: Matrix, ids: NDArray[np.int32]) -> NDArray[np.float32]:
    hidden_size = matrix.values.shape[1]
    hidden = np.full((len(ids), hidden_size), np.nan, np.float32)
    run(
        device,
        "embed_rows",
        {0: ids, **matrix.slots(1), 4: hidden},
        args=pack(len(ids), hidden_size, VOCABULARY),
        threadgroups=(len(ids),),
        threads=ARGS.kRowThreads,
        constants=matrix.constants,
    )
    return hidden


def check(hidden: NDArray[np.float32], matrix: Matrix, ids: NDArray[np.int32]) -> None:
    """scale * code is exact in float32 (8 + 8 bits), so the sum with the bias is rounded once: equal to the bit."""
    known = (ids >= 0) & (ids < VOCABULARY)
    expected = np.where(known[:, None], matrix.values[np.where(known, ids, 0)], 0.0)
    assert np.array_equal(hidden, expected.astype(np.float32))


@pytest.mark.parametrize("hidden_size", [128, 384, 2176])
@pytest.mark.parametrize(("bits", "group_size"), FORMATS)
def test_formats(bits: int, group_size: int, hidden_size: int) -> None:
    matrix = make_matrix(bits, group_size, hidden_size)
    ids = np.array([0, 36, 5, 5, 17], np.int32)
    check(embed(sim(), matrix, ids), matrix, ids)


@pytest.mark.parametrize("hidden_size", [2, 30, 270])
def test_plain_rows_of_any_even_size(hidden_size: int) -> None:
    matrix = make_matrix(16, 64, hidden_size)
    ids = np.array([11, 36], np.int32)
    check(embed(sim(), matrix, ids), matrix, ids)


@pytest.mark.parametrize(("bits", "group_size"), [(4, 64), (8, 64), (16, 64)])
def test_ids_outside_the_vocabulary_give_zeros(bits: int, group_size: int) -> None:
    matrix = make_matrix(bits, group_size, 192)
    ids = np.array([3, -1, VOCABULARY, VOCABULARY - 1, 2**31 - 1, -(2**31)], np.int32)
    check(embed(sim(checked=True), matrix, ids), matrix, ids)


@pytest.mark.parametrize(("bits", "group_size"), [(4, 32), (8, 128), (16, 64)])
def test_order_of_threads_does_not_matter(bits: int, group_size: int) -> None:
    matrix = make_matrix(bits, group_size, 1152)
    ids = np.array([9, -1, 30], np.int32)
    forward = embed(sim(order="forward"), matrix, ids)
    assert np.array_equal(forward, embed(sim(order="reverse"), matrix, ids))
    assert np.array_equal(forward, embed(sim(order="random", seed=1), matrix, ids))
