"""Weights that are not numbers: no crash in any kernel, logits that say so, and no token sampled from them."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from engine_helpers import THREADS, random_ids

import lily
from lily import _core
from lily.checkpoint import ElementType, read_checkpoint
from lily.errors import BackendError

NOT_A_NUMBER = b"\xc0\x7f"  # bfloat16


def overwrite_vector(directory: Path, name: str, value: bytes) -> None:
    source = read_checkpoint(directory).source
    vector = next(vector for vector in source.vectors if vector.name == name)
    assert vector.element_type is ElementType.bfloat16
    with Path(source.files[vector.file]).open("r+b") as file:
        file.seek(vector.offset)
        file.write(value * vector.size)


@pytest.mark.parametrize("isa", _core.available_isas())
@pytest.mark.parametrize(
    "name",
    [
        "norm",
        "layers.1.input_layernorm",
        "layers.2.post_attention_layernorm",
        "layers.1.self_attn.q_norm",
        "layers.1.self_attn.k_norm",
    ],
)
def test_not_a_number(checkpoint: Path, tmp_path: Path, name: str, isa: str) -> None:
    directory = Path(shutil.copytree(checkpoint, tmp_path / "damaged"))
    overwrite_vector(directory, name, NOT_A_NUMBER)
    with lily.Model.load(directory, threads=THREADS, cpu_isa=isa, prefill_chunk=16) as model:
        session = model.session()
        assert np.isnan(session.prefill(random_ids(40))).any()
        assert np.isnan(session.decode(1)).any()
        for sampling in (lily.Sampling(), lily.Sampling.greedy()):
            with pytest.raises(BackendError, match="not finite"):
                next(session.generate(max_tokens=1, sampling=sampling, stop_tokens=()))
        assert np.isnan(session.score(random_ids(40))).all()
        assert session.position == 41
