"""Checkpoints in folders whose names are not plain text."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import lily
from synthetic import random_config, write_checkpoint


@pytest.mark.parametrize("name", [b"with space \xc3\xa9\xe2\x98\x83", b"not utf-8 \xff\xfe"])
@pytest.mark.skipif(sys.platform == "darwin", reason="the file system refuses names that are not UTF-8")
def test_folder_names_of_any_bytes(tmp_path: Path, name: bytes) -> None:
    plain = tmp_path / "plain"
    write_checkpoint(plain, random_config(np.random.default_rng(3)), group_size=32)
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
    shutil.copytree(plain, odd)
    with lily.Model.load(plain) as expected, lily.Model.load(odd) as model:
        assert np.array_equal(model.prefill([1, 2, 3]).logits, expected.prefill([1, 2, 3]).logits)
