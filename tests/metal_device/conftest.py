"""A small model whose shapes the GPU engine takes."""

from pathlib import Path

import pytest

from gpu_models import GPU_CONFIG
from synthetic import write_checkpoint


@pytest.fixture(scope="session")
def small_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A 4-bit checkpoint of 4 layers."""
    return write_checkpoint(tmp_path_factory.mktemp("metal_device") / "small", GPU_CONFIG, seed=5, group_size=32)
