"""The reference's own loader: one model in every layout gives one set of weights."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from oracles.random_models import (
    AFFINE_SHAPES,
    PLAIN_SHAPES,
    Shape,
    random_tensors,
    write_affine,
    write_plain,
)
from reference import load, load_weights, read_config
from safetensors.numpy import load_file, save_file


def half_precision(shape: Shape, seed: int) -> dict[str, np.ndarray]:
    return {
        name: array.astype(np.float16).astype(np.float64)
        for name, array in random_tensors(shape, seed).items()
    }


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "one_by_one"])
@pytest.mark.parametrize("shape", PLAIN_SHAPES, ids=lambda shape: shape.name)
def test_vendor_layout(shape: Shape, fused: bool, tmp_path: Path) -> None:
    write_plain(tmp_path, shape, 11, fused)
    weights = load_weights(tmp_path, read_config(tmp_path))
    expected = half_precision(shape, 11)
    if shape.tied:
        assert (weights.pop("lm_head") == weights["embed_tokens"]).all()
    assert weights.keys() == expected.keys()
    for name, array in expected.items():
        assert weights[name].shape == array.shape, name
        # A norm weight is rounded once more when it is stored without its 1.
        assert np.abs(weights[name] - array).max() <= (1e-3 if "norm" in name else 0), name


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group_size", [32, 64])
@pytest.mark.parametrize("shape", AFFINE_SHAPES, ids=lambda shape: shape.name)
def test_affine_layout(shape: Shape, group_size: int, bits: int, tmp_path: Path) -> None:
    write_affine(tmp_path, shape, 12, group_size, bits)
    weights = load_weights(tmp_path, read_config(tmp_path))
    expected = random_tensors(shape, 12)
    for name, array in expected.items():
        kind = name.rpartition(".")[2]
        assert weights[name].shape == array.shape, name
        spread = np.abs(array).max()
        if array.ndim == 1 or kind == "conv1d":
            tolerance = 1e-3 * spread
        else:
            tolerance = 2 * spread / (255 if kind.endswith("gate") else 2**bits - 1)
        assert np.abs(weights[name] - array).max() <= tolerance, name


@pytest.mark.parametrize("prefix", ["model.language_model.", "model.", "language_model.model."])
def test_overrides_under_any_prefix(prefix: str, tmp_path: Path) -> None:
    shape = AFFINE_SHAPES[0]
    write_affine(tmp_path / "a", shape, 13)
    write_affine(tmp_path / "b", shape, 13)
    path = tmp_path / "b" / "config.json"
    config = json.loads(path.read_text())
    renamed = {
        name.replace("language_model.model.", prefix): value for name, value in config["quantization"].items()
    }
    del renamed["mode"]
    del config["quantization"]
    config["quantization_config"] = renamed
    path.write_text(json.dumps(config))
    ids = np.arange(20)
    assert (load(tmp_path / "a").forward(ids) == load(tmp_path / "b").forward(ids)).all()


def test_shards_and_skipped_tensors(tmp_path: Path) -> None:
    write_affine(tmp_path, AFFINE_SHAPES[1], 14)
    ids = np.arange(30)
    expected = load(tmp_path).forward(ids)
    tensors = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    tensors["vision_tower.blocks.0.norm1.weight"] = np.ones(5, np.float16)
    tensors["mtp.layers.0.input_layernorm.weight"] = np.ones(5, np.float16)
    names = sorted(tensors)
    for shard in range(3):
        part = {name: tensors[name] for name in names[shard::3]}
        save_file(part, tmp_path / f"model-0000{shard + 1}-of-00003.safetensors")
    assert (load(tmp_path).forward(ids) == expected).all()
