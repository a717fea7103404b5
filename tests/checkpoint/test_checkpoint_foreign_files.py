"""What is no checkpoint, or no whole one, is called what it is, with what to do about it."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from checkpoint_edits import Table, edit_config, edit_header, read_header_table, write_header

from lily.checkpoint import read_checkpoint
from lily.errors import CheckpointError, ConfigError, LilyError
from synthetic import random_config, text_config, write_checkpoint

CONFIG = random_config(np.random.default_rng(103), group_size=32, nested=True, tied=False)
text_config(CONFIG).update(layer_types=["linear_attention", "full_attention"], num_hidden_layers=2)
INDEX = "model.safetensors.index.json"
SHARD = "model-00002-of-00002.safetensors"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 5368709120\n"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("written")
    write_checkpoint(root / "sharded", CONFIG, group_size=32, shards=2)
    return root


@pytest.fixture
def sharded(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written / "sharded", tmp_path / "sharded"))


def refusal(path: Path) -> str:
    with pytest.raises(LilyError) as caught:
        read_checkpoint(path)
    text = str(caught.value)
    assert len(text) < 1500
    assert "\n" not in text
    return text


@pytest.mark.parametrize("name", ["config.json", INDEX, SHARD])
@pytest.mark.parametrize(
    ("content", "fragment"),
    [
        (POINTER, "this is a Git LFS pointer, not the file itself: run git lfs pull"),
        (b"<!doctype HTML><html><head><title>401</title>", "is a web page"),
        (b"\n\n<html>" + b" " * 2000, "is a web page"),
        (b"<?xml version='1.0'?><Error>", "is a web page"),
        (b"GGUF\x03\x00\x00\x00" + bytes(100), "is a GGUF file"),
        (b"PK\x03\x04" + b"\xff" * 100, "is a zip archive"),
        (bytes(5000), "only zero bytes"),
    ],
)
def test_other_content(sharded: Path, name: str, content: bytes, fragment: str) -> None:
    (sharded / name).write_bytes(content)
    text = refusal(sharded)
    assert str(sharded / name) in text
    assert fragment in text


@pytest.mark.parametrize("length", [0x280, 0x4034B50, 0x28B1F])
def test_a_header_of_any_length_is_no_other_format(sharded: Path, length: int) -> None:
    """The length of a header, with which a file begins, may look like the mark of another format."""
    path = sharded / SHARD
    header, data = read_header_table(path)
    text = json.dumps(header).encode()
    while len(text) > length:
        length += 1 << 16  # the same lowest bytes
    write_header(path, text.ljust(length), data)
    assert path.read_bytes()[:2] in (b"\x80\x02", b"PK", b"\x1f\x8b")
    read_checkpoint(sharded)


@pytest.mark.parametrize("name", ["config.json", INDEX])
def test_a_byte_order_mark_is_tolerated(sharded: Path, name: str) -> None:
    (sharded / name).write_bytes(b"\xef\xbb\xbf" + (sharded / name).read_bytes())
    read_checkpoint(sharded)
    (sharded / name).write_bytes((sharded / name).read_bytes().decode("utf-8-sig").encode("utf-16"))
    assert "UTF-16; save it as UTF-8" in refusal(sharded)


@pytest.mark.parametrize("name", ["config.json", INDEX, SHARD])
@pytest.mark.parametrize("target", ["/dev/zero", "/dev/null", "/dev/tty"])
def test_devices(sharded: Path, name: str, target: str) -> None:
    (sharded / name).unlink()
    (sharded / name).symlink_to(target)
    assert str(sharded / name) in refusal(sharded)


@pytest.mark.parametrize("name", ["config.json", INDEX, SHARD])
def test_pipes_are_not_waited_for(sharded: Path, name: str) -> None:
    (sharded / name).unlink()
    os.mkfifo(sharded / name)
    assert "is not a regular file" in refusal(sharded)


FOREIGN = [
    ("model-Q4_K_M.gguf", "is a GGUF file"),
    ("pytorch_model.bin", "contains PyTorch weights"),
    ("consolidated.00.pth", "contains PyTorch weights"),
    ("weights.npz", "is a NumPy archive"),
    ("model.onnx", "is an ONNX model"),
    ("model.safetensors.incomplete", "is an incomplete download"),
]


@pytest.mark.parametrize(("name", "fragment"), FOREIGN)
def test_files_of_other_formats(tmp_path: Path, name: str, fragment: str) -> None:
    (tmp_path / name).write_bytes(b"something")
    for path in (tmp_path, tmp_path / name):
        text = refusal(path)
        assert name in text
        assert fragment in text
        assert "safetensors" in text or "download it again" in text


def test_weights_of_other_formats_beside_a_checkpoint_do_not_matter(sharded: Path) -> None:
    for name, _ in FOREIGN:
        (sharded / name).write_bytes(b"something")
    read_checkpoint(sharded)


@pytest.mark.parametrize("name", ["adapters.safetensors", "adapter_model.safetensors"])
def test_an_adapter_is_no_model(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"x")
    (tmp_path / "adapter_config.json").write_text("{}")
    assert "is a LoRA adapter" in refusal(tmp_path)


@pytest.mark.parametrize("name", ["config.json", INDEX])
def test_a_part_of_a_checkpoint_is_not_the_whole(sharded: Path, name: str) -> None:
    assert "give its directory instead" in refusal(sharded / name)


def test_a_pipe_in_the_place_of_the_directory(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "neither a directory nor a regular file" in refusal(tmp_path / "pipe")


def first_weight(header: Table) -> str:
    return next(name for name in header if name.endswith("in_proj_qkv.weight"))


OTHER_QUANTIZATION: list[tuple[Callable[[Table], object], str]] = [
    (lambda header: header.update({first_weight(header).replace(".weight", ".qweight"): dict(EMPTY)}), "AWQ or GPTQ"),
    (lambda header: header.update({first_weight(header).replace(".weight", ".weight_scale_inv"): dict(EMPTY)}), "fp8"),
    (lambda header: header.update({first_weight(header).replace(".weight", ".absmax"): dict(EMPTY)}), "bitsandbytes"),
    (lambda header: header.pop(first_weight(header).replace(".weight", ".biases")), ""),
]
EMPTY = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}


@pytest.mark.parametrize(("change", "kind"), OTHER_QUANTIZATION)
def test_tensors_of_other_quantizers(written: Path, tmp_path: Path, change: Callable[[Table], None], kind: str) -> None:
    write_checkpoint(tmp_path, CONFIG, group_size=32, index=False)
    edit_header(tmp_path / "model.safetensors", change)
    text = refusal(tmp_path)
    if kind:
        assert f"this is {kind}" in text
        assert "take the 4-bit or 8-bit MLX upload" in text
    else:
        assert "download the rest of the checkpoint" in text


def test_microscaling_formats_are_named_though_they_have_no_biases(tmp_path: Path) -> None:
    """mxfp4 of MLX: scales of one byte, no biases, and a mode that the config may lack."""
    write_checkpoint(tmp_path, CONFIG, group_size=32, index=False)

    def without_biases(header: Table) -> None:
        for name in [name for name in header if name.endswith(".biases")]:
            del header[name]
        for name, entry in header.items():
            if name.endswith(".scales"):
                begin, end = entry["data_offsets"]
                entry.update(dtype="U8", data_offsets=[begin, begin + (end - begin) // 2])

    edit_header(tmp_path / "model.safetensors", without_biases)
    text = refusal(tmp_path)
    assert "this is mxfp4, mxfp8 or nvfp4" in text
    assert "take the 4-bit or 8-bit MLX upload" in text
    edit_config(tmp_path, lambda config: config["quantization"].update(mode="mxfp4"))
    with pytest.raises(ConfigError, match="This is mxfp4: take the 4-bit or 8-bit"):
        read_checkpoint(tmp_path)


@pytest.fixture(params=[4300, 640, 0])
def digit_limit(request: pytest.FixtureRequest) -> Iterator[None]:
    """Python's own limit of the digits of an integer, which a program may change; 0 is none."""
    if not hasattr(sys, "set_int_max_str_digits"):
        pytest.skip("this Python has no limit")
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(request.param)
    yield
    sys.set_int_max_str_digits(before)


@pytest.mark.parametrize("digits", [19, 20, 599, 600, 601, 4299, 4300, 4301, 100_000])
@pytest.mark.parametrize("place", ["begin", "end", "shape"])
def test_numbers_of_any_length(sharded: Path, digits: int, place: str, digit_limit: None) -> None:
    number = "9" * digits
    offsets = {"begin": f"[{number}, {number}]", "end": f"[0, {number}]", "shape": "[0, 4]"}[place]
    shape = f"[{number}]" if place == "shape" else "[1]"
    entry = f'{{"x": {{"dtype": "F32", "shape": {shape}, "data_offsets": {offsets}}}}}'
    write_header(sharded / SHARD, entry.encode(), bytes(64))
    with pytest.raises(CheckpointError):
        read_checkpoint(sharded)
    assert SHARD in refusal(sharded)


@pytest.mark.parametrize("digits", [20, 600, 601, 4300, 4301])
def test_numbers_of_any_length_in_the_config(sharded: Path, digits: int, digit_limit: None) -> None:
    path = sharded / "config.json"
    original = path.read_text()
    for field in ("hidden_size", "rms_norm_eps", "model_type", "num_experts", "rope_parameters", "layer_types"):
        config = json.loads(original)
        text_config(config)[field] = "@"
        path.write_text(json.dumps(config).replace('"@"', "9" * digits))
        assert "config.json" in refusal(sharded)


def test_thousands_of_missing_names_make_a_short_error(sharded: Path) -> None:
    content = json.loads((sharded / INDEX).read_text())
    content["weight_map"] |= {f"a{number}": f"missing{number}.safetensors" for number in range(5000)}
    (sharded / INDEX).write_text(json.dumps(content))
    assert "5000 of the 5002 files" in refusal(sharded)
    content["weight_map"] = dict.fromkeys(content["weight_map"], SHARD)
    (sharded / INDEX).write_text(json.dumps(content))
    assert "more" in refusal(sharded)
