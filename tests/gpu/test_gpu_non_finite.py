"""Values that are not finite on a GPU engine: noticed by the host, and named as far as the state shows them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import lily
from gpu_models import GPU_CONFIG
from lily.checkpoint import read_checkpoint
from lily.errors import NonFiniteError
from synthetic import write_checkpoint

BAD = 300


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The embedding of one token is not a number."""
    directory = write_checkpoint(tmp_path_factory.mktemp("bad") / "model", GPU_CONFIG, seed=5, bits=None)
    source = read_checkpoint(directory).source
    matrix = next(matrix for matrix in source.matrices if matrix.name == "embed_tokens")
    with Path(source.files[matrix.parts[0].weight.file]).open("r+b") as file:
        file.seek(matrix.parts[0].weight.offset + 2 * matrix.columns * BAD)
        file.write(b"\xc0\x7f" * matrix.columns)
    with lily.Model.load(directory, backend="sim") as loaded:
        yield loaded


def test_steps_and_prompts(model, tmp_path):
    session = model.prefill([1, 2, 3])
    with pytest.raises(NonFiniteError, match=r"logits at position 3 are not finite.*: layers\.0\.recurrent_state"):
        session.decode(BAD)
    for use in (lambda: session.save(tmp_path / "state"), lambda: model.cache.insert(session), session.snapshot):
        with pytest.raises(NonFiniteError):
            use()
    session.reset()
    assert np.isfinite(session.prefill([1, 2, 3])).all()
    with pytest.raises(NonFiniteError, match="position 5 "):
        model.session().prefill([1, 2, 3, BAD, 5, 6])
    # Masked positions of a tile count with weight 0, which is not enough: earlier rows of a chunk may fail as well.
    with pytest.raises(NonFiniteError, match=r"position [012] "):
        model.session().score([1, 2, BAD, 5, 6])


@pytest.mark.parametrize("bias", [{}, {7: 0.5}])
def test_generated_tokens(model, bias):
    """The device picks the next token itself, or leaves that to the host."""
    session = model.prefill([1, 2, 3])
    forced = session.generate(3, sampling=lily.Sampling(temperature=0.0, logit_bias={BAD: 1e6}), stop_tokens=())
    assert next(forced) == BAD
    rest = session.generate(3, sampling=lily.Sampling(temperature=0.0, logit_bias=bias), stop_tokens=())
    with pytest.raises(NonFiniteError, match="logits at position 3 are not finite"):
        next(rest)
