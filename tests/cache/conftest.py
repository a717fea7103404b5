"""Models and random prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pytest

from lily import Model
from lily_tiny import CHECKPOINT

Ids = npt.NDArray[np.int64]


@pytest.fixture(scope="session")
def model() -> Iterator[Model]:
    """For what does not look at the cache's content: shared by all tests."""
    with Model.load(CHECKPOINT, threads=2, max_context=2048) as loaded:
        yield loaded


@pytest.fixture
def load() -> Iterator[Callable[..., Model]]:
    """Loads models of a test's own, closed after it."""
    loaded: list[Model] = []

    def load_one(**options: object) -> Model:
        loaded.append(Model.load(CHECKPOINT, **{"threads": 1, "max_context": 4096, **options}))
        return loaded[-1]

    yield load_one
    for one in loaded:
        one.close()


@pytest.fixture
def prompt() -> Callable[[int], Ids]:
    """Random token ids, new ones for each call."""
    generator = np.random.default_rng(20260411)
    return lambda count: generator.integers(0, 4000, count)
