"""A small random model that the engine's tests share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import lily
from engine_helpers import CONFIG
from synthetic import write_checkpoint


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A 4-bit checkpoint of 4 layers in two shards, without tokenizer files."""
    directory = tmp_path_factory.mktemp("engine") / "small"
    return write_checkpoint(directory, CONFIG, seed=5, group_size=32, shards=2)


@pytest.fixture(scope="session")
def model(checkpoint: Path) -> Iterator[lily.Model]:
    """The model in chunks of 16 tokens; tests must not close it."""
    with lily.Model.load(checkpoint, threads=1, prefill_chunk=16) as loaded:
        yield loaded


@pytest.fixture
def session(model: lily.Model) -> Iterator[lily.Session]:
    with model.session(seed=3) as opened:
        yield opened
