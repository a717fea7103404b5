"""Configs and weights with values that random models do not have: each decides something, on every backend."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import lily
import reference
from engine_helpers import CONFIG, random_ids
from synthetic import write_checkpoint

# Shapes that the GPU engine takes, too.
SHAPES = {**CONFIG, "linear_key_head_dim": 32, "linear_value_head_dim": 16}
IDS = random_ids(40, seed=61)
DECODED = 5
# Of the largest logit. The GPU engine rounds activations to bfloat16 some ten times a layer.
ERRORS = {"cpu": 1e-3, "sim": 0.05}
BACKENDS = [backend for backend in ERRORS if backend in lily.available_backends()]
HEADS = SHAPES["linear_num_value_heads"]

Change = Callable[[NDArray[Any]], object]


def edit_tensors(directory: Path, ending: str, change: Change) -> None:
    """Change all tensors whose names end so: float32 values, or the bits of bfloat16."""
    path = directory / "model.safetensors"
    data = bytearray(path.read_bytes())
    begin = 8 + int.from_bytes(data[:8], "little")
    found = {
        name: entry for name, entry in json.loads(data[8:begin]).items() if name.endswith(ending) and "dtype" in entry
    }
    assert found, ending
    for entry in found.values():
        first, last = (begin + offset for offset in entry["data_offsets"])
        values = np.frombuffer(data[first:last], np.float32 if entry["dtype"] == "F32" else np.uint16)
        values = values.reshape(entry["shape"]).copy()
        change(values)
        data[first:last] = values.tobytes()
    path.write_bytes(data)


def assign(values: Any, place: Any = slice(None)) -> Change:
    def change(array: NDArray[Any]) -> None:
        array[place] = values

    return change


# What differs from other models, and the tensors that do.
CASES: dict[str, tuple[dict[str, Any], dict[str, Change]]] = {
    "a large epsilon": ({"rms_norm_eps": 0.3}, {}),
    "a small epsilon and faint residuals": ({"rms_norm_eps": 1e-5}, {"embed_tokens.weight": assign(0x3A80)}),
    "weights of experts as they are": ({"norm_topk_prob": False}, {}),
    "experts that are all alike to the router": ({}, {"mlp.gate.weight": assign(0)}),
    "tokens of zeros": ({}, {"embed_tokens.weight": assign(0)}),
    "queries and keys of zeros": ({}, {"self_attn.q_proj.weight": assign(0), "self_attn.k_proj.weight": assign(0)}),
    "gates at the ends of their range": (
        {},
        {
            "linear_attn.dt_bias": assign(np.linspace(-40, 95, HEADS)),
            # A head forgets about a tenth a token, whatever its gate's bias.
            "linear_attn.A_log": assign(np.log(0.1 / np.logaddexp(0, np.linspace(-40, 95, HEADS)))),
        },
    ),
    "gates where they bend": (
        {},
        {
            "linear_attn.dt_bias": assign(np.linspace(1, 4, HEADS)),
            "linear_attn.A_log": assign(np.log(0.1)),
            "linear_attn.in_proj_a.weight": assign(0),
        },
    ),
}


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, NDArray[np.float64]]:
    """A checkpoint, and the reference's logits after each token."""
    config, edits = CASES[request.param]
    directory = tmp_path_factory.mktemp("unusual")
    write_checkpoint(directory, {**SHAPES, **config}, seed=7, bits=None, vector_dtype="F32")
    for ending, change in edits.items():
        edit_tensors(directory, ending, change)
    return directory, reference.load(directory).forward(IDS)


@pytest.mark.parametrize("backend", BACKENDS)
def test_against_the_reference(case: tuple[Path, NDArray[np.float64]], backend: str) -> None:
    directory, expected = case
    with lily.Model.load(directory, backend=backend, threads=1) as model, model.session() as session:
        found = [np.array(session.prefill(IDS[:-DECODED]))]
        found += [np.array(session.decode(token)) for token in IDS[-DECODED:]]
    wanted = expected[-DECODED - 1 :]
    assert np.abs(np.stack(found) - wanted).max() <= ERRORS[backend] * np.abs(wanted).max()  # zeros stay zeros
