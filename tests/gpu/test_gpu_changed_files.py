"""Files that change under a model on a GPU: noticed where it computes from them, of no matter where it has copies."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lily
from deferred_device import model_on, run_stage
from engine_helpers import random_ids
from lily import _test_doubles
from lily.checkpoint import resolve_source
from lily.errors import CheckpointError

PROMPT = random_ids(12)


@pytest.fixture
def directory(checkpoint: Path, tmp_path: Path) -> Path:
    copy = Path(shutil.copytree(checkpoint, tmp_path / "copy"))
    time.sleep(0.02)  # longer than the steps of a file system's clock
    return copy


def change(directory: Path) -> None:
    with (directory / "model.safetensors").open("r+b") as file:
        file.seek(-64, os.SEEK_END)
        file.write(b"\x55" * 64)


def test_no_result_from_weights_that_changed_meanwhile(directory: Path) -> None:
    stages = 0

    def run_and_change(launches: list[Any]) -> None:
        nonlocal stages
        stages += 1
        if stages == 5:
            change(directory)
        run_stage(launches)

    with model_on(_test_doubles.CallbackDevice(run_and_change), directory) as model, model.session() as session:
        with pytest.raises(CheckpointError, match="was written to"):
            session.prefill(PROMPT)
        assert stages >= 5
        assert session.position == 0


def test_copied_weights_do_not_need_the_file(directory: Path, model: lily.Model) -> None:
    device = _test_doubles.CallbackDevice(run_stage)
    device.copies = True
    with model_on(device, directory) as copied, copied.session() as session:
        change(directory)
        with model.session() as expected:
            assert np.array_equal(session.prefill(PROMPT), expected.prefill(PROMPT))


def test_changed_while_weights_are_copied(tmp_path: Path) -> None:
    directory = Path(shutil.copytree(resolve_source("lily-tiny"), tmp_path / "copy"))  # its tensors are aligned
    time.sleep(0.02)
    device = _test_doubles.CallbackDevice(run_stage)
    device.copies = True
    with pytest.raises(CheckpointError, match="was written to"):
        model_on(device, directory, copy_progress=lambda done, total: change(directory))
