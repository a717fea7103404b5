"""A small model whose shapes the GPU engine takes."""

import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / folder) for folder in ("", "gpu", "engine")]

from gpu_models import GPU_CONFIG  # noqa: E402

from synthetic import write_checkpoint  # noqa: E402


@pytest.fixture(scope="session")
def small_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A 4-bit checkpoint of 4 layers."""
    return write_checkpoint(tmp_path_factory.mktemp("metal_device") / "small", GPU_CONFIG, seed=5, group_size=32)
