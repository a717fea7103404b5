"""Every layout that writers use is read to the same model; values are compared with the tests' own reader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_edits import Table, read_header_table, write_header
from numpy.typing import NDArray

from checkpoint_helpers import all_values, assert_valid
from lily.checkpoint import Checkpoint, ElementType, LayerType, MatrixFormat, read_checkpoint
from lily.errors import CheckpointError
from reference.config import read_config
from reference.weights import load_weights
from synthetic import random_config, text_config, write_checkpoint

PREFIXES = ("language_model.model.", "model.language_model.", "model.")


def expect_reference_values(directory: Path) -> Checkpoint:
    """Read a checkpoint and compare every weight, bit for bit, with what the reference reader finds."""
    checkpoint = read_checkpoint(directory)
    assert_valid(checkpoint)
    found = all_values(checkpoint)
    expected = load_weights(directory, read_config(directory))
    assert set(found) == {name for name in expected if not name.startswith(("mtp.", "vision", "visual"))}
    for name, values in found.items():
        np.testing.assert_array_equal(values.reshape(expected[name].shape), expected[name], err_msg=name)
    return checkpoint


def random_options(rng: np.random.Generator) -> dict[str, Any]:
    """Any combination of layout, prefix, types and sharding that a quantized or plain checkpoint can have."""
    quantized = bool(rng.integers(2))
    layouts = ("stacked", "per_expert") if quantized else ("stacked", "fused", "per_expert")
    floats = ("BF16", "F16", "F32")
    return {
        "seed": int(rng.integers(1 << 30)),
        "bits": int(rng.choice((4, 8))) if quantized else None,
        "group_size": 32,
        "router_bits": rng.choice((4, 8)).item() if quantized else None,
        "mode": "affine" if rng.integers(2) else None,
        "prefix": str(rng.choice(PREFIXES)),
        "override_prefix": str(rng.choice(PREFIXES)),
        "layout": str(rng.choice(layouts)),
        "converted": bool(rng.integers(2)),
        "scale_dtype": str(rng.choice(floats)),
        "plain_dtype": str(rng.choice(floats)),
        "vector_dtype": str(rng.choice(floats)),
        "a_log_dtype": str(rng.choice(floats)),
        "shards": int(rng.integers(1, 5)),
        "scatter": bool(rng.integers(2)),
        "index": bool(rng.integers(2)),
        "odd_offsets": bool(rng.integers(2)),
        "shuffle": bool(rng.integers(2)),
        "extra": [("vision", "mtp"), ("mtp",), ()][rng.integers(3)],
    }


@pytest.mark.parametrize("seed", range(30))
def test_random_checkpoints_hold_the_reference_values(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng([1, seed])
    options = random_options(rng)
    config = random_config(rng, group_size=1 if options["bits"] is None else 32)
    write_checkpoint(tmp_path, config, **options)
    checkpoint = expect_reference_values(tmp_path)
    text = text_config(config)
    assert checkpoint.config.vocab_size == text["vocab_size"]
    assert [kind.value for kind in checkpoint.config.layer_types] == text["layer_types"]
    assert checkpoint.tied_embeddings is text["tie_word_embeddings"]
    assert {vector.add for vector in checkpoint.source.vectors if vector.name == "norm"} == {
        0.0 if options["converted"] else 1.0
    }
    assert all(vector.add == 0.0 for vector in checkpoint.source.vectors if "linear_attn" in vector.name)


def test_layouts_of_the_same_model_agree(tmp_path: Path) -> None:
    config = random_config(np.random.default_rng(7), group_size=1, tied=False)
    found: dict[str, dict[str, NDArray[np.float64]]] = {}
    for layout in ("stacked", "fused", "per_expert"):
        write_checkpoint(tmp_path / layout, config, bits=None, layout=layout, plain_dtype="F32")
        found[layout] = all_values(read_checkpoint(tmp_path / layout))
    for name, values in found["stacked"].items():
        np.testing.assert_array_equal(values, found["fused"][name], err_msg=name)
        np.testing.assert_array_equal(values, found["per_expert"][name], err_msg=name)
    assert abs(found["stacked"]["norm"].mean() - 1.0) < 0.1


def test_formats_can_be_mixed_by_module(tmp_path: Path) -> None:
    config = random_config(np.random.default_rng(11), group_size=64, tied=False, nested=True)
    overrides: dict[str, dict[str, int] | bool] = {
        "lm_head": {"bits": 8, "group_size": 32},
        "embed_tokens": False,
        "layers.0.mlp.experts.down_proj": {"bits": 8, "group_size": 64},
        "layers.1.mlp.experts.gate_proj": False,
        "layers.0.mlp.gate": False,
    }
    write_checkpoint(tmp_path, config, overrides=overrides, override_prefix="model.")
    checkpoint = expect_reference_values(tmp_path)
    found = {matrix.name: matrix for matrix in checkpoint.source.matrices}
    assert (found["lm_head"].format, found["lm_head"].group_size) == (MatrixFormat.affine8, 32)
    assert found["embed_tokens"].format is MatrixFormat.plain
    assert found["layers.0.mlp.experts.down_proj"].format is MatrixFormat.affine8
    assert found["layers.0.mlp.experts.up_proj"].format is MatrixFormat.affine4
    assert found["layers.1.mlp.experts.gate_proj"].format is MatrixFormat.plain
    assert found["layers.0.mlp.gate"].element_type is ElementType.bfloat16


def test_groups_of_all_sizes(tmp_path: Path) -> None:
    config = random_config(np.random.default_rng(13), group_size=128)
    for group_size in (32, 64, 128):
        directory = tmp_path / str(group_size)
        write_checkpoint(directory, config, group_size=group_size, shards=3, scatter=True)
        checkpoint = expect_reference_values(directory)
        assert {matrix.group_size for matrix in checkpoint.source.matrices} == {group_size}


def test_fused_experts_are_views_of_one_tensor(tmp_path: Path) -> None:
    config = random_config(np.random.default_rng(17), group_size=1)
    write_checkpoint(tmp_path, config, bits=None, layout="fused", prefix="model.language_model.")
    checkpoint = read_checkpoint(tmp_path)
    found = {matrix.name: matrix for matrix in checkpoint.source.matrices}
    gate, up = (found[f"layers.0.mlp.experts.{name}_proj"] for name in ("gate", "up"))
    assert len(gate.parts) == len(up.parts) == 1
    first, second = gate.parts[0].weight, up.parts[0].weight
    assert first.file == second.file
    assert second.offset - first.offset == gate.weight_bytes
    assert first.stride == second.stride == 2 * gate.weight_bytes


def join_gate_and_up(header: Table, data: bytes) -> tuple[Table, bytes]:
    """The same tensors with gate_proj and up_proj of stacked experts in one gate_up_proj, gate rows first."""
    joined: Table = {}
    parts: list[bytes] = []

    def add(name: str, dtype: str, shape: list[int], content: bytes) -> None:
        begin = sum(map(len, parts))
        joined[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, begin + len(content)]}
        parts.append(content)

    def content_of(name: str) -> bytes:
        begin, end = header[name]["data_offsets"]
        return data[begin:end]

    for name, entry in header.items():
        if name == "__metadata__" or ".switch_mlp.up_proj." in name:
            continue
        if ".switch_mlp.gate_proj." not in name:
            add(name, entry["dtype"], entry["shape"], content_of(name))
            continue
        experts, rows, columns = entry["shape"]
        gate, up = content_of(name), content_of(name.replace("gate_proj", "up_proj"))
        size = len(gate) // experts
        both = b"".join(part[i * size : (i + 1) * size] for i in range(experts) for part in (gate, up))
        add(name.replace("gate_proj", "gate_up_proj"), entry["dtype"], [experts, 2 * rows, columns], both)
    return joined, b"".join(parts)


@pytest.mark.parametrize("bits", [4, 8, None])
def test_stacked_experts_with_gate_and_up_in_one(bits: int | None, tmp_path: Path) -> None:
    config = random_config(np.random.default_rng(31), group_size=32, nested=True)
    write_checkpoint(tmp_path, config, bits=bits, group_size=32, converted=True, index=False)
    expected = all_values(read_checkpoint(tmp_path))
    path = tmp_path / "model.safetensors"
    header, data = join_gate_and_up(*read_header_table(path))
    assert any("gate_up_proj" in name for name in header)
    write_header(path, header, data)
    checkpoint = read_checkpoint(tmp_path)
    assert_valid(checkpoint)
    found = all_values(checkpoint)
    assert found.keys() == expected.keys()
    for name, values in found.items():
        np.testing.assert_array_equal(values, expected[name], err_msg=name)


def test_scales_may_lie_in_another_file_than_the_codes(tmp_path: Path) -> None:
    config = random_config(np.random.default_rng(19))
    write_checkpoint(tmp_path, config, group_size=32, shards=4, scatter=True, index=False)
    checkpoint = expect_reference_values(tmp_path)
    parts = [part for matrix in checkpoint.source.matrices for part in matrix.parts]
    assert any(part.weight.file != part.scales.file for part in parts)
    assert any(part.scales.file != part.biases.file for part in parts)


def test_files_of_skipped_tensors_alone_are_not_mapped(tmp_path: Path) -> None:
    from synthetic import Options, tensors, write_file

    config = random_config(np.random.default_rng(23))
    options = Options(group_size=32, extra=("vision", "mtp"))
    everything = list(tensors(config, options))
    other = [tensor for tensor in everything if tensor.name.startswith(("vision", "mtp"))]
    write_checkpoint(tmp_path, config, group_size=32, index=False)
    write_file(tmp_path / "model-vision.safetensors", other, options)
    checkpoint = read_checkpoint(tmp_path)
    assert [Path(file).name for file in checkpoint.source.files] == ["model.safetensors"]
    assert checkpoint.ignored == tuple(sorted(tensor.name for tensor in other))
    assert checkpoint.ignored_bytes == sum(tensor.nbytes for tensor in other) > 0


def test_norms_stay_as_they_are_beside_mtp_tensors(tmp_path: Path) -> None:
    config = random_config(np.random.default_rng(29))
    write_checkpoint(tmp_path, config, group_size=32, extra=("mtp", "vision"))
    checkpoint = expect_reference_values(tmp_path)
    assert all(vector.add == 0.0 for vector in checkpoint.source.vectors)
    assert any(name.startswith("mtp.") for name in checkpoint.ignored)


@pytest.mark.parametrize(("layout", "add"), [("stacked", 0.0), ("fused", 1.0), ("per_expert", 1.0)])
def test_a_model_without_convolutions_is_told_by_its_experts(layout: str, add: float, tmp_path: Path) -> None:
    config = random_config(np.random.default_rng(31), group_size=1)
    text = text_config(config)
    text["layer_types"] = ["full_attention"] * text["num_hidden_layers"]
    write_checkpoint(tmp_path, config, bits=None, layout=layout)
    checkpoint = expect_reference_values(tmp_path)
    assert {vector.add for vector in checkpoint.source.vectors} == {add}


def test_one_file_beside_its_config(tmp_path: Path) -> None:
    config = random_config(np.random.default_rng(37))
    write_checkpoint(tmp_path, config, group_size=32, index=False)
    of_directory = read_checkpoint(tmp_path)
    of_file = read_checkpoint(tmp_path / "model.safetensors")
    assert of_file == of_directory
    assert of_file.directory == tmp_path


def test_symbolic_links_as_in_the_cache_of_the_hub(tmp_path: Path) -> None:
    config = random_config(np.random.default_rng(41))
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "main"
    write_checkpoint(blobs, config, group_size=32, shards=3)
    snapshot.mkdir(parents=True)
    for file in blobs.iterdir():
        (snapshot / file.name).symlink_to(Path("../..") / "blobs" / file.name)
    checkpoint = expect_reference_values(snapshot)
    assert all(Path(file).parent == snapshot for file in checkpoint.source.files)


def test_tied_head_shares_the_embedding_and_ignores_its_own(tmp_path: Path) -> None:
    config = random_config(np.random.default_rng(43), tied=False, nested=False)
    write_checkpoint(tmp_path, config, group_size=32)
    import json

    path = tmp_path / "config.json"
    written = json.loads(path.read_text())
    path.write_text(json.dumps({**written, "tie_word_embeddings": True}))
    checkpoint = read_checkpoint(tmp_path)
    found = {matrix.name: matrix for matrix in checkpoint.source.matrices}
    assert checkpoint.tied_embeddings
    assert found["lm_head"].parts == found["embed_tokens"].parts
    assert {name.rsplit(".", 1)[1] for name in checkpoint.ignored} == {"weight", "scales", "biases"}
    assert all("lm_head" in name for name in checkpoint.ignored)


def test_lily_tiny_is_read() -> None:
    directory = Path(__file__).resolve().parents[2] / "python" / "lily" / "data" / "lily-tiny"
    if not directory.is_dir():
        pytest.skip("the bundled model is not in this tree")
    checkpoint = expect_reference_values(directory)
    assert checkpoint.text_tensors == 357
    assert checkpoint.text_bytes == 12_305_424
    assert checkpoint.config.layer_types.count(LayerType.full_attention) == 2


@pytest.mark.parametrize("kind", ["flat", "nested", "tied"])
def test_checkpoints_that_transformers_writes(kind: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    text = text_config(random_config(np.random.default_rng(47), group_size=1, tied=kind == "tied"))
    text_settings = transformers.Qwen3_5MoeTextConfig(**{k: v for k, v in text.items() if k != "model_type"})
    torch.manual_seed(5)
    if kind == "nested":
        vision = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2}
        settings = transformers.Qwen3_5MoeConfig(
            text_config=text_settings.to_dict(),
            vision_config={**vision, "out_hidden_size": text["hidden_size"]},
        )
        model = transformers.Qwen3_5MoeForConditionalGeneration(settings)
    else:
        model = transformers.Qwen3_5MoeForCausalLM(text_settings)
    model.to(torch.bfloat16).save_pretrained(tmp_path, max_shard_size="200KB")
    checkpoint = expect_reference_values(tmp_path)
    assert len(checkpoint.source.files) > 1
    assert checkpoint.tied_embeddings is (kind == "tied")
    assert bool(checkpoint.ignored) is (kind == "nested")
    embedding = model.get_input_embeddings().weight.detach().double().numpy()
    np.testing.assert_array_equal(all_values(checkpoint)["embed_tokens"][0], embedding)


def test_the_index_of_shards_that_were_joined(tmp_path: Path) -> None:
    config = random_config(np.random.default_rng(5), nested=True, tied=False)
    write_checkpoint(tmp_path, config, group_size=32, index=False)
    expected = expect_reference_values(tmp_path)
    assert [path.name for path in tmp_path.glob("*.safetensors")] == ["model.safetensors"]
    names = [f"model-0000{at}-of-00002.safetensors" for at in (1, 2)]
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": names[0], "b": names[1]}}))
    assert read_checkpoint(tmp_path).config == expected.config
    (tmp_path / names[0]).write_bytes(b"")  # one of the shards is there: the others are missing
    with pytest.raises(CheckpointError, match="1 of the 2 files"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "audio_tower.layers.0.weight",
        "model.multi_modal_projector.linear.weight",
        "talker.model.layers.0.norm.weight",
        "model.image_newline",
        "code2wav.norm.weight",
    ],
)
def test_parts_that_the_text_model_does_not_use(tmp_path: Path, name: str) -> None:
    config = random_config(np.random.default_rng(6), nested=True, tied=False)
    write_checkpoint(tmp_path, config, group_size=32, index=False)
    header, data = read_header_table(tmp_path / "model.safetensors")
    entry = {"dtype": "BF16", "shape": [0], "data_offsets": [0, 0]}
    write_header(tmp_path / "model.safetensors", {**header, name: entry}, data)
    assert_valid(read_checkpoint(tmp_path))
