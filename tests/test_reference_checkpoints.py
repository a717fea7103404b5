"""The reference's own loader: one model in every layout gives one set of weights."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from oracles.random_models import (
    AFFINE_SHAPES,
    PLAIN_SHAPES,
    Shape,
    random_tensors,
    save,
    write_affine,
    write_plain_random,
)
from reference import load, load_weights, read_config
from reference.tensor_files import from_bfloat16, to_bfloat16

ROUNDING = {
    "BF16": lambda x: from_bfloat16(to_bfloat16(x)),
    "F16": lambda x: x.astype(np.float16),
    "F32": lambda x: x,
}


@pytest.mark.parametrize("dtype", list(ROUNDING))
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "one_by_one"])
@pytest.mark.parametrize("shape", PLAIN_SHAPES, ids=lambda shape: shape.name)
def test_vendor_layout(shape: Shape, fused: bool, dtype: str, tmp_path: Path) -> None:
    write_plain_random(tmp_path, shape, 11, fused, dtype)
    weights = load_weights(tmp_path, read_config(tmp_path))
    expected = {name: ROUNDING[dtype](array) for name, array in random_tensors(shape, 11).items()}
    if shape.tied:
        assert (weights.pop("lm_head") == weights["embed_tokens"]).all()
    assert weights.keys() == expected.keys()
    for name, array in expected.items():
        assert weights[name].shape == array.shape, name
        # Norm weights are rounded without their 1, which differs a little from rounding them with it.
        assert np.abs(weights[name] - array).max() <= (8e-3 if "norm" in name else 0), name


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
        tolerance = 2.0**-7 * spread
        if array.ndim > 1 and kind != "conv1d":  # the range is at most twice the spread; half a step of it
            tolerance += spread / (255 if kind.endswith("gate") else 2**bits - 1)
        assert np.abs(weights[name] - array).max() <= tolerance, name


@pytest.mark.parametrize("prefix", ["model.language_model.", "model.", "language_model.model."])
def test_overrides_under_any_prefix(prefix: str, tmp_path: Path) -> None:
    shape = AFFINE_SHAPES[0]
    write_affine(tmp_path / "a", shape, 13)
    write_affine(tmp_path / "b", shape, 13)
    path = tmp_path / "b" / "config.json"
    config = json.loads(path.read_text())
    renamed = {name.replace("language_model.model.", prefix): value for name, value in config["quantization"].items()}
    del renamed["mode"]
    del config["quantization"]
    config["quantization_config"] = renamed
    path.write_text(json.dumps(config))
    ids = np.arange(20)
    assert (load(tmp_path / "a").forward(ids) == load(tmp_path / "b").forward(ids)).all()


def test_the_writer_is_understood_by_the_safetensors_library(tmp_path: Path) -> None:
    shape = PLAIN_SHAPES[0]
    write_plain_random(tmp_path, shape, 15, dtype="F32")
    with safe_open(tmp_path / "model.safetensors", "np") as file:
        for name, array in random_tensors(shape, 15).items():
            if name.endswith("in_proj_qkv"):
                assert (file.get_tensor(f"model.language_model.{name}.weight") == array).all()


def test_shards_and_skipped_tensors(tmp_path: Path) -> None:
    write_affine(tmp_path, AFFINE_SHAPES[1], 14, dtype="F16")
    ids = np.arange(30)
    expected = load(tmp_path).forward(ids)
    with safe_open(tmp_path / "model.safetensors", "np") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    (tmp_path / "model.safetensors").unlink()
    names = {np.dtype("u4"): "U32", np.dtype("f4"): "F32", np.dtype("f2"): "F16"}
    stored = {name: (names[array.dtype], array) for name, array in tensors.items()}
    stored["vision_tower.blocks.0.norm1.weight"] = ("F16", np.ones(5, np.float16))
    stored["mtp.layers.0.input_layernorm.weight"] = ("F16", np.ones(5, np.float16))
    for shard in range(3):
        part = dict(sorted(stored.items())[shard::3])
        save(tmp_path / f"model-0000{shard + 1}-of-00003.safetensors", part)
    assert (load(tmp_path).forward(ids) == expected).all()
