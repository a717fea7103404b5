"""A small random model whose shapes the GPU engine takes, on the sim device."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import lily
from gpu_models import GPU_CONFIG
from synthetic import write_checkpoint


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A 4-bit checkpoint of 4 layers."""
    return write_checkpoint(tmp_path_factory.mktemp("gpu") / "small", GPU_CONFIG, seed=11, group_size=32)


@pytest.fixture(scope="session")
def model(checkpoint: Path) -> Iterator[lily.Model]:
    with lily.Model.load(checkpoint, backend="sim") as loaded:
        yield loaded


@pytest.fixture(scope="session")
def cpu_model(checkpoint: Path) -> Iterator[lily.Model]:
    with lily.Model.load(checkpoint, backend="cpu", threads=1) as loaded:
        yield loaded
