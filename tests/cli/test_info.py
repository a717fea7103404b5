"""Tests of lily info: figures from headers, that add up."""

import json
import shutil

import pytest

from lily.cli import main

pytest.importorskip("typer")


@pytest.fixture
def report(tiny, capsys):
    assert main(["info", str(tiny), "--context", "1000", "--threads", "2", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_architecture(report):
    assert report["model_type"] == "qwen3_5_moe"
    expected = {"layers": 8, "linear_attention_layers": 6, "full_attention_layers": 2, "experts": 32}
    assert report["architecture"].items() >= {**expected, "hidden_size": 256, "vocab_size": 4096}.items()
    assert 21.6e6 < report["parameters"] < 21.8e6


def test_bytes_add_up(report, tiny):
    parts, memory = report["bytes"], report["plan"]
    assert sum(parts.values()) == memory["weights"]
    assert parts["embedding"] == parts["output head"] == 4096 * 256 // 2 + 2 * 4096 * 256 // 64 * 2
    vectors = sum(parts.values()) - sum(entry["bytes"] for entry in report["quantization"])
    assert 0 < vectors < 0.01 * memory["weights"]
    header = (tiny / "model.safetensors").stat().st_size - memory["weights"]
    assert 0 < header < 100_000  # nothing but the header is left
    assert {entry["format"] for entry in report["quantization"]} == {"affine4", "affine8"}


def test_the_plan_follows_the_context(report, tiny, capsys):
    assert report["plan"]["context"] == 1000
    assert main(["info", str(tiny), "--context", "2048", "--threads", "2", "--json"]) == 0
    longer = json.loads(capsys.readouterr().out)["plan"]
    # Blocks of 256 tokens, 2 layers, keys and values of 256, two bytes each.
    assert longer["kv_cache"] == 2 * report["plan"]["kv_cache"] == 2048 * 2 * 2 * 256 * 2
    assert longer["total"] - report["plan"]["total"] == longer["kv_cache"] - report["plan"]["kv_cache"]


def test_text_for_people(tiny, capsys):
    assert main(["info", str(tiny)]) == 0
    text = capsys.readouterr().out
    for word in ("linear attention", "affine4, groups of 64, bfloat16", "kv cache", "parameters"):
        assert word in text
    assert "\x1b" not in text


def test_bundled_name_and_single_file(tiny, capsys):
    assert main(["info", str(tiny / "model.safetensors"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tensors"] > 300


@pytest.mark.parametrize("context", ["300000", "262145"])
def test_a_context_beyond_the_model_is_refused(tiny, capsys, context):
    assert main(["info", str(tiny), "--context", context]) == 1
    assert "max_position_embeddings" in capsys.readouterr().err


def test_damage_is_one_line(tiny, tmp_path, capsys):
    shutil.copyfile(tiny / "config.json", tmp_path / "config.json")
    data = (tiny / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(data[: len(data) // 2])
    assert main(["info", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("lily: ")
    assert "model.safetensors" in error
    assert error.count("\n") == 1


def test_nothing_there(capsys, tmp_path):
    assert main(["info", str(tmp_path / "nowhere")]) == 1
    assert "nowhere" in capsys.readouterr().err
