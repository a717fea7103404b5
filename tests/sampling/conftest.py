"""The bundled model."""

from collections.abc import Iterator

import pytest

from lily import Model
from lily_tiny import CHECKPOINT


@pytest.fixture(scope="session")
def model() -> Iterator[Model]:
    with Model.load(CHECKPOINT, threads=2, max_context=2048) as loaded:
        yield loaded
