"""Every damaged or unsupported checkpoint is one error that names the file, the tensor and the remedy."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from checkpoint_edits import edit_header, edit_json, read_header_table, reshape, write_header

from lily.checkpoint import read_checkpoint
from lily.errors import CheckpointError, ConfigError
from synthetic import random_config, text_config, write_checkpoint

CONFIG = random_config(np.random.default_rng(101), group_size=32, nested=True, tied=False)
text_config(CONFIG).update(layer_types=["linear_attention", "full_attention"], num_hidden_layers=2)
HIDDEN = text_config(CONFIG)["hidden_size"]
ROOT = "language_model.model."
QKV = f"{ROOT}layers.0.linear_attn.in_proj_qkv"
INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("written")
    write_checkpoint(root / "single", CONFIG, group_size=32, index=False)
    write_checkpoint(root / "sharded", CONFIG, group_size=32, shards=3)
    write_checkpoint(root / "plain", CONFIG, bits=None, layout="per_expert", index=False)
    return root


@pytest.fixture
def single(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written / "single", tmp_path / "single"))


@pytest.fixture
def sharded(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written / "sharded", tmp_path / "sharded"))


@pytest.fixture
def plain(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written / "plain", tmp_path / "plain"))


def expect(directory: Path, *fragments: str) -> str:
    """The error's text, which must contain all fragments, on one line and of readable length."""
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(directory)
    text = str(caught.value)
    for fragment in fragments:
        assert fragment in text, text
    assert "\n" not in text
    assert len(text) < 4000
    return text


def test_nothing_there(tmp_path: Path) -> None:
    expect(tmp_path / "absent", "absent", "no such checkpoint", "config.json")
    (tmp_path / "notes.txt").write_text("hello")
    expect(tmp_path / "notes.txt", "notes.txt", "not a safetensors file")
    expect(tmp_path, "has no .safetensors file")


def test_missing_shard_by_index(sharded: Path) -> None:
    (sharded / "model-00002-of-00003.safetensors").unlink()
    expect(sharded, "model-00002-of-00003.safetensors", "missing", "download")


def test_missing_shard_by_number(sharded: Path) -> None:
    (sharded / INDEX).unlink()
    (sharded / "model-00001-of-00003.safetensors").unlink()
    expect(sharded, "model-00001-of-00003.safetensors", "missing", "download")


def test_shard_that_is_a_directory(sharded: Path) -> None:
    (sharded / "model-00003-of-00003.safetensors").unlink()
    (sharded / "model-00003-of-00003.safetensors").mkdir()
    expect(sharded, "model-00003-of-00003.safetensors", "is a directory")


def test_shard_that_is_a_pipe_does_not_block(sharded: Path) -> None:
    path = sharded / "model-00003-of-00003.safetensors"
    path.unlink()
    os.mkfifo(path)
    expect(sharded, path.name, "not a regular file")


def test_broken_and_circular_links(sharded: Path) -> None:
    path = sharded / "model-00003-of-00003.safetensors"
    path.unlink()
    path.symlink_to("nowhere.safetensors")
    expect(sharded, path.name, "a missing file", "download")
    path.unlink()
    path.symlink_to(path.name)
    expect(sharded, path.name, "cannot be read")


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything")
def test_unreadable_file(single: Path) -> None:
    (single / "model.safetensors").chmod(0)
    expect(single, "model.safetensors", "cannot be read", "permission")


@pytest.mark.parametrize("kept", [0, 3, 8, 9, 100, -1])
def test_truncated_file(single: Path, kept: int) -> None:
    path = single / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    expect(single, "model.safetensors", "download it again")


@pytest.mark.parametrize(
    ("start", "fragment"),
    [
        ((1 << 62).to_bytes(8, "little"), "longer than the file"),
        (b"\xff" * 8, "longer than the file"),
        (b"\0" * 8, "does not begin with a safetensors header"),
        ((1).to_bytes(8, "little"), "does not begin with a safetensors header"),
        ((40).to_bytes(8, "little"), "is not JSON"),
    ],
)
def test_wrong_header_length(single: Path, start: bytes, fragment: str) -> None:
    path = single / "model.safetensors"
    path.write_bytes(start + path.read_bytes()[8:])
    expect(single, "model.safetensors", fragment, "download it again" if "JSON" not in fragment else "restore")


def test_header_beyond_the_limit_of_the_format(single: Path) -> None:
    path = single / "model.safetensors"
    with path.open("wb") as file:  # sparse: takes no space
        file.write((200_000_000).to_bytes(8, "little") + b"{")
        file.truncate(300_000_000)
    expect(single, "model.safetensors", "200000000", "exceeds the limit")


@pytest.mark.parametrize(
    ("header", "fragment"),
    [
        (b"{}", "tensors are missing"),
        (b'{"a": }', "is not JSON"),
        (b'{"a": [' + b"[" * 200_000, "deeply"),
        (b'{"\xff": 1}', "not UTF-8"),
        (b'{"a": {"dtype": "F32", "dtype": "F16"}}', "'dtype' appears twice"),
        (b'{"x": NaN}', "NaN is not a finite number"),
        (b'{"x": 1e999}', "not a finite number"),
        (b'{"x": ' + b"9" * 5000 + b"}", "is not JSON"),
        (b'{"x": 1}', "not an object"),
        (b'{"x": {}}', "its dtype"),
        (b'{"x": {"dtype": "F32"}}', "its shape"),
        (b'{"x": {"dtype": "F32", "shape": [true]}}', "its shape"),
        (b'{"x": {"dtype": "F32", "shape": [-1]}}', "its shape"),
        (b'{"x": {"dtype": "F32", "shape": [1.0]}}', "its shape"),
        (b'{"x": {"dtype": "F32", "shape": [1]}}', "its data_offsets"),
        (b'{"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 8]}}', "its data_offsets"),
        (b'{"x": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}', "reversed"),
        (b'{"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}', "takes 8 bytes but it has 4"),
        (b'{"x": {"dtype": "F32", "shape": [4294967296, 4294967296], "data_offsets": [0, 4]}}', "2^40"),
        (
            b'{"x": {"dtype": "F32", "shape": [1], "data_offsets": [9999999996, 10000000000]}}',
            "beyond the end",
        ),
    ],
)
def test_wrong_header(single: Path, header: bytes, fragment: str) -> None:
    write_header(single / "model.safetensors", header, bytes(64))
    expect(single, "model.safetensors", fragment.replace("'", ""))


def test_overlapping_tensors(single: Path) -> None:
    def overlap(header: dict) -> None:
        scales, biases = header[f"{QKV}.scales"], header[f"{QKV}.biases"]
        begin, end = scales["data_offsets"]
        biases["data_offsets"] = [begin + 2, end + 2]

    edit_header(single / "model.safetensors", overlap)
    expect(single, "model.safetensors", "overlap", "in_proj_qkv")


@pytest.mark.parametrize(
    ("name", "dtype", "shape", "fragment"),
    [
        (f"{QKV}.weight", "I32", None, "implies U32"),
        (f"{QKV}.scales", "I16", None, "implies BF16 or F16 or F32"),
        (f"{QKV}.biases", "F16", None, "another type than its scales (BF16)"),
        (f"{QKV}.weight", "U32", "transposed", "implies U32"),
        (f"{QKV}.weight", "U32", "flat", "implies U32"),
        (f"{ROOT}norm.weight", "U16", None, f"implies BF16 or F16 or F32 [{HIDDEN}]"),
        (f"{ROOT}norm.weight", "BF16", "column", f"implies BF16 or F16 or F32 [{HIDDEN}]"),
        (f"{ROOT}layers.0.linear_attn.A_log", "I32", None, "implies BF16 or F16 or F32"),
        (f"{ROOT}layers.0.linear_attn.conv1d.weight", "BF16", "flat", "implies BF16 or F16 or F32"),
    ],
)
def test_wrong_type_or_shape(single: Path, name: str, dtype: str, shape: str | None, fragment: str) -> None:
    def change(header: dict) -> None:
        old = header[name]["shape"]
        new = {
            None: old,
            "transposed": old[::-1],
            "flat": [int(np.prod(old))],
            "column": [*old, 1],
        }[shape]
        reshape(header, name, dtype, new)

    edit_header(single / "model.safetensors", change)
    expect(single, "model.safetensors", name, fragment, "config.json", "same supported source")


def test_all_missing_tensors_are_listed(single: Path) -> None:
    gone = [
        f"{QKV}.scales",
        f"{ROOT}norm.weight",
        f"{ROOT}layers.0.mlp.gate.weight",
        f"{ROOT}layers.1.mlp.gate.weight",
        f"{ROOT}layers.1.self_attn.q_norm.weight",
        "language_model.lm_head.biases",
    ]
    edit_header(single / "model.safetensors", lambda header: [header.pop(name) for name in gone])
    text = expect(single, "6 tensors are missing", "download")
    for name in gone:
        assert (
            name.replace("layers.0.mlp", "layers.{0-1}.mlp")
            .replace("layers.1.mlp", "layers.{0-1}.mlp")
            .replace("language_model.lm_head", "lm_head")
            in text
        )


def test_missing_experts_are_listed(plain: Path) -> None:
    gone = [f"{ROOT}layers.{layer}.mlp.experts.{expert}.up_proj.weight" for layer in (0, 1) for expert in (0, 2)]
    edit_header(plain / "model.safetensors", lambda header: [header.pop(name) for name in gone])
    expect(plain, "4 tensors are missing", "layers.{0-1}.mlp.experts.{0,2}.up_proj.weight")


def test_experts_of_different_types(plain: Path) -> None:
    name = f"{ROOT}layers.1.mlp.experts.1.down_proj.weight"
    edit_header(plain / "model.safetensors", lambda header: header[name].update(dtype="F16"))
    expect(plain, name, "another type or quantization", "experts.0.down_proj")


def test_experts_in_two_layouts(plain: Path) -> None:
    def add(header: dict) -> None:
        header[f"{ROOT}layers.1.mlp.switch_mlp.up_proj.weight"] = {
            "dtype": "BF16", "shape": [0], "data_offsets": [0, 0]
        }  # fmt: skip

    edit_header(plain / "model.safetensors", add)
    expect(plain, "layers.1.mlp", "several layouts")


def test_layers_with_different_convolution_layouts(single: Path) -> None:
    path = single / "config.json"
    edit_json(path, lambda content: content["text_config"].update(layer_types=["linear_attention"] * 2))
    write_checkpoint(single, json.loads(path.read_text()), group_size=32, index=False)
    name = f"{ROOT}layers.1.linear_attn.conv1d.weight"

    def turn(header: dict) -> None:
        channels, kernel, one = header[name]["shape"]
        header[name]["shape"] = [channels, one, kernel]

    edit_header(single / "model.safetensors", turn)
    expect(single, name, "axes in another order", "layers.0.linear_attn.conv1d")


@pytest.mark.parametrize(
    "name", [f"{ROOT}layers.1.self_attn.q_proj.bias", f"{ROOT}layers.2.mlp.gate.weight", "audio.weight"]
)
def test_unexpected_tensor(single: Path, name: str) -> None:
    entry = {"dtype": "BF16", "shape": [0], "data_offsets": [0, 0]}
    edit_header(single / "model.safetensors", lambda header: header.update({name: entry}))
    expect(single, "model.safetensors", name, "have no place")


def test_duplicate_tensor_in_two_shards(sharded: Path) -> None:
    (sharded / INDEX).unlink()
    first = read_header_table(sharded / "model-00001-of-00003.safetensors")[0]
    name = next(name for name in first if name != "__metadata__")
    entry = {"dtype": "BF16", "shape": [0], "data_offsets": [0, 0]}
    edit_header(sharded / "model-00002-of-00003.safetensors", lambda header: header.update({name: entry}))
    expect(sharded, name, "model-00001-of-00003", "model-00002-of-00003", "remove")


def test_same_tensor_under_two_prefixes(single: Path) -> None:
    entry = {"dtype": "BF16", "shape": [0], "data_offsets": [0, 0]}
    edit_header(
        single / "model.safetensors",
        lambda header: header.update({"model.language_model.norm.weight": entry}),
    )
    expect(single, "model.language_model.norm.weight", f"{ROOT}norm.weight", "another prefix")


@pytest.mark.parametrize(
    "name",
    [
        "../evil.safetensors",
        "/etc/x.safetensors",
        "a/../../b.safetensors",
        "c:\\x.safetensors",
        "..\\y.safetensors",
    ],
)
def test_index_that_reaches_outside(sharded: Path, name: str) -> None:
    edit_json(sharded / INDEX, lambda content: content["weight_map"].update({f"{ROOT}norm.weight": name}))
    expect(sharded, INDEX, f"{ROOT}norm.weight", "reaches outside")


@pytest.mark.parametrize(
    ("name", "fragment"),
    [
        (7, "must be a file name"),
        ("passwd", "not the name of a .safetensors file"),
        ("a\0b.safetensors", "not the name of a .safetensors file"),
        ("\ud800.safetensors", "not the name of a .safetensors file"),
        ("x" * 300 + ".safetensors", "too long"),
    ],
)
def test_index_with_an_unusable_name(sharded: Path, name: object, fragment: str) -> None:
    edit_json(sharded / INDEX, lambda content: content["weight_map"].update({f"{ROOT}norm.weight": name}))
    expect(sharded, INDEX, fragment)


def test_index_that_does_not_match_its_files(sharded: Path) -> None:
    def move(content: dict) -> None:
        for name, file in content["weight_map"].items():
            if file == "model-00001-of-00003.safetensors":
                content["weight_map"][name] = "model-00002-of-00003.safetensors"

    edit_json(sharded / INDEX, move)
    expect(sharded, INDEX, "model-00002-of-00003.safetensors lacks", "same source")


@pytest.mark.parametrize(
    ("content", "fragment"),
    [
        (b"", "is not JSON"),
        (b"\xff\xfe", "is not UTF-8"),
        (b"[]", "contains a JSON list"),
        (b"{}", "weight_map is missing"),
        (b'{"weight_map": {}}', "weight_map is missing"),
        (b'{"weight_map": []}', "weight_map is missing"),
        (b'{"weight_map": {"a": "b.safetensors", "a": "c.safetensors"}}', "appears twice"),
        (b'{"weight_map":' * 100_000, "deeply"),
    ],
)
def test_damaged_index(sharded: Path, content: bytes, fragment: str) -> None:
    (sharded / INDEX).write_bytes(content)
    expect(sharded, INDEX, fragment)


def test_several_indexes(single: Path) -> None:
    for name in ("a", "b"):
        (single / f"{name}.safetensors.index.json").write_text("{}")
    expect(single, "several indexes", "a.safetensors.index.json")


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.unlink(),
        lambda path: (path.unlink(), path.mkdir()),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"{"),
        lambda path: path.write_bytes(b"\xff"),
        lambda path: path.write_bytes(b"[" * 100_000),
        lambda path: path.write_bytes(b'"text"'),
        lambda path: path.write_bytes(b'{"a": 1, "a": 2}'),
        lambda path: path.write_bytes(b" " * (17 << 20)),
    ],
)
def test_damaged_config_file(single: Path, change: Callable[[Path], object]) -> None:
    path = single / "config.json"
    change(path)
    with pytest.raises(ConfigError, match=r"config\.json.*(restore|permission)"):
        read_checkpoint(single)
