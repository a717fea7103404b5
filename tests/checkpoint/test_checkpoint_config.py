"""config.json: defaults, the places where writers put a field, and refusals that say what is supported."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_edits import edit_header

from lily.checkpoint import LayerType, MatrixFormat, read_checkpoint
from lily.checkpoint.config import parse_config
from lily.checkpoint.quantization import parse_quantization
from lily.errors import ConfigError, LilyError
from synthetic import REAL_CONFIG, random_config, text_config, with_layers, write_checkpoint


def flat() -> dict[str, Any]:
    return copy.deepcopy(text_config(REAL_CONFIG))


def parse(raw: dict[str, Any]) -> Any:
    return parse_config(raw, "folder/config.json")


def test_the_real_config() -> None:
    config = parse(REAL_CONFIG)
    assert config.num_hidden_layers == 40
    assert [layer for layer, kind in enumerate(config.layer_types) if kind is LayerType.full_attention] == [
        3, 7, 11, 15, 19, 23, 27, 31, 35, 39
    ]  # fmt: skip
    assert (config.head_dim, config.rotary_dim, config.rope_theta) == (256, 64, 1e7)
    assert config.linear_conv_dim == 8192
    assert config.norm_topk_prob is True
    assert config.rms_norm_eps == 1e-6
    assert (config.hidden_size, config.vocab_size, config.max_position_embeddings) == (2048, 248320, 262144)
    assert (config.num_experts, config.num_experts_per_tok) == (256, 8)


def test_flat_nested_and_outer_type_alone_agree() -> None:
    assert parse(flat()) == parse(REAL_CONFIG)
    assert parse({**flat(), "model_type": "qwen3_5_moe"}) == parse(REAL_CONFIG)


def test_layer_types_from_the_interval() -> None:
    raw = flat()
    del raw["layer_types"]
    assert parse(raw) == parse(REAL_CONFIG)
    raw["full_attention_interval"] = 3
    raw["num_hidden_layers"] = 7
    full = [kind is LayerType.full_attention for kind in parse(raw).layer_types]
    assert full == [False, False, True, False, False, True, False]
    del raw["full_attention_interval"]
    assert parse(raw).layer_types == parse(REAL_CONFIG).layer_types[:7]


def test_layer_types_go_before_the_interval() -> None:
    raw = flat()
    raw["layer_types"] = ["full_attention"] + ["linear_attention"] * 39
    assert parse(raw).layer_types[0] is LayerType.full_attention
    del raw["num_hidden_layers"]
    assert parse(raw).num_hidden_layers == 40


@pytest.mark.parametrize(
    ("change", "theta", "rotary"),
    [
        ({"rope_parameters": None, "rope_theta": 5e5, "partial_rotary_factor": 0.5}, 5e5, 128),
        ({"rope_theta": 5e5, "partial_rotary_factor": 0.5}, 1e7, 64),
        ({"rope_parameters": {"rope_theta": 100}, "partial_rotary_factor": 1}, 100.0, 256),
        ({"rope_parameters": {"rope_theta": 100}, "partial_rotary_factor": None}, 100.0, 64),
        ({"rope_parameters": {"type": "default", "rope_theta": 7.5}, "rope_scaling": None}, 7.5, 64),
        ({"rope_scaling": {"rope_type": "default"}}, 1e7, 64),
        ({"rope_parameters": {"rope_theta": 3, "partial_rotary_factor": 0.3}}, 3.0, 76),
    ],
)
def test_rope_in_all_its_places(change: dict[str, Any], theta: float, rotary: int) -> None:
    config = parse({**flat(), **change})
    assert (config.rope_theta, config.rotary_dim) == (theta, rotary)


def test_defaults() -> None:
    raw = flat()
    for name in (
        "rms_norm_eps",
        "linear_conv_kernel_dim",
        "hidden_act",
        "attention_bias",
        "attn_output_gate",
    ):
        del raw[name]
    assert parse(raw) == parse(REAL_CONFIG)
    assert parse({**raw, "norm_topk_prob": False}).norm_topk_prob is False


REQUIRED = (
    "hidden_size",
    "vocab_size",
    "max_position_embeddings",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "num_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
)


@pytest.mark.parametrize("name", REQUIRED)
@pytest.mark.parametrize(
    "value",
    [None, 0, -1, True, False, 2.0, "64", [64], {}, (1 << 31) + 1, 1 << 40, 10**4000, 2.5],
    ids=lambda v: str(v)[:12],
)
def test_wrong_dimensions(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"config\.json: {name} (is missing|must be)"):
        parse({**flat(), name: value})


@pytest.mark.parametrize("name", REQUIRED)
def test_absent_dimensions(name: str) -> None:
    raw = flat()
    del raw[name]
    with pytest.raises(ConfigError, match=rf"{name} is missing"):
        parse(raw)


@pytest.mark.parametrize(
    ("change", "fragments"),
    [
        ({"model_type": "llama"}, ("'llama'", "qwen3_5_moe", "qwen3_5_moe_text")),
        ({"model_type": "qwen3_5"}, ("'qwen3_5'", "qwen3_5_moe_text")),
        ({"model_type": None}, ("model_type is missing", "qwen3_5_moe")),
        ({"model_type": 5}, ("model_type must be a string",)),
        ({"num_experts": 0}, ("dense models are not supported",)),
        ({"mlp_only_layers": [1]}, ("mlp_only_layers must be empty",)),
        ({"decoder_sparse_step": 2}, ("decoder_sparse_step must be 1",)),
        ({"attention_bias": True}, ("attention_bias must be false",)),
        ({"attn_output_gate": False}, ("attn_output_gate must be true",)),
        ({"hidden_act": "gelu"}, ("'gelu'", "'silu'")),
        ({"output_gate_type": "sigmoid"}, ("'sigmoid'", "'silu'")),
        ({"sliding_window": 4096}, ("sliding_window must be null",)),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e7}}, ("'yarn'", "'default'")),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, ("'linear'", "'default'")),
        ({"rope_parameters": {}}, ("rope_theta is missing",)),
        ({"rope_parameters": []}, ("rope_parameters must be an object",)),
        ({"rope_parameters": {"rope_theta": True}}, ("rope_theta must be a number",)),
        ({"rope_parameters": {"rope_theta": 0}}, ("rope_theta must be between",)),
        ({"rope_parameters": {"rope_theta": float("nan")}}, ("rope_theta must be between",)),
        ({"rope_parameters": {"rope_theta": float("inf")}}, ("rope_theta must be between",)),
        ({"rope_parameters": {"rope_theta": 10**400}}, ("rope_theta must be between",)),
        ({"rope_parameters": {"rope_theta": 1, "partial_rotary_factor": 1.5}}, ("partial_rotary_factor",)),
        (
            {"rope_parameters": {"rope_theta": 1, "partial_rotary_factor": 0.254}},
            ("65 rotated", "head_dim 256"),
        ),
        ({"rope_parameters": {"rope_theta": 1, "partial_rotary_factor": 0.001}}, ("0 rotated",)),
        ({"head_dim": 6, "rope_parameters": {"rope_theta": 1, "partial_rotary_factor": 0.5}}, ("3 rotated",)),
        ({"rms_norm_eps": 0}, ("rms_norm_eps must be between",)),
        ({"rms_norm_eps": float("nan")}, ("rms_norm_eps must be between",)),
        ({"rms_norm_eps": "1e-6"}, ("rms_norm_eps must be a number",)),
        ({"norm_topk_prob": 1}, ("norm_topk_prob must be true or false",)),
        ({"num_attention_heads": 15}, ("num_attention_heads (15) must be a multiple",)),
        ({"linear_num_value_heads": 33}, ("linear_num_value_heads (33) must be a multiple",)),
        ({"num_experts_per_tok": 257}, ("num_experts_per_tok (257) must not exceed num_experts (256)",)),
        ({"linear_conv_kernel_dim": 1}, ("linear_conv_kernel_dim must be between 2",)),
        ({"layer_types": ["linear_attention"]}, ("layer_types has 1 entries but num_hidden_layers is 40",)),
        ({"layer_types": ["mamba"] * 40}, ("layer_types[0]", "'mamba'", "full_attention")),
        ({"layer_types": [3] * 40}, ("layer_types must be a list of strings",)),
        ({"layer_types": "full_attention"}, ("layer_types must be a list of strings",)),
        (
            {"layer_types": None, "num_hidden_layers": 10**9},
            ("num_hidden_layers must be between 1 and 4096",),
        ),
        ({"layer_types": None, "num_hidden_layers": None}, ("num_hidden_layers is missing",)),
        ({"layer_types": None, "full_attention_interval": 0}, ("full_attention_interval must be between 1",)),
        ({"layer_types": []}, ("layer_types has 0 entries",)),
        ({"layer_types": [], "num_hidden_layers": None}, ("num_hidden_layers must be between 1",)),
        ({"hidden_size": 1 << 24, "vocab_size": 1 << 24}, ("2^40",)),
        ({"text_config": 3}, ("text_config must be an object",)),
        ({"text_config": {"model_type": "qwen3_vl"}}, ("'qwen3_vl'", "qwen3_5_moe_text")),
    ],
)
def test_refusals(change: dict[str, Any], fragments: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse({**flat(), **change})
    text = str(caught.value)
    assert text.startswith("folder/config.json")
    for fragment in fragments:
        assert fragment in text


def test_errors_in_a_nested_config_say_so() -> None:
    raw = copy.deepcopy(REAL_CONFIG)
    raw["text_config"]["hidden_size"] = -3
    with pytest.raises(ConfigError, match=r"config\.json: text_config: hidden_size must be between 1 and"):
        parse(raw)


# Quantization.

AFFINE = {"group_size": 64, "bits": 4, "mode": "affine"}


def quantization(block: object, **more: object) -> Any:
    return parse_quantization({"quantization": block, **more}, "folder/config.json")


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model.", "model.", "language_model.", ""])
def test_overrides_under_every_prefix(prefix: str) -> None:
    found = quantization(
        {
            **AFFINE,
            f"{prefix}layers.3.mlp.gate": {"bits": 8},
            f"{prefix}layers.3.mlp.switch_mlp.up_proj": False,
            f"{prefix}embed_tokens": {"group_size": 32, "bits": 8},
            f"{prefix}layers.1.mlp.gate": True,
        }
    )
    assert found.format("layers.3.mlp.gate") == (MatrixFormat.affine8, 64)
    assert found.format("embed_tokens") == (MatrixFormat.affine8, 32)
    assert found.format("layers.2.mlp.gate") == found.format("layers.1.mlp.gate") == (MatrixFormat.affine4, 64)
    assert found.forbids("layers.3.mlp.switch_mlp.up_proj")
    assert not found.forbids("layers.3.mlp.gate")


@pytest.mark.parametrize("name", ["language_model.lm_head", "lm_head"])
def test_override_of_the_head(name: str) -> None:
    assert quantization({**AFFINE, name: {"bits": 8}}).format("lm_head") == (MatrixFormat.affine8, 64)


def test_absent_mode_and_either_block() -> None:
    plain = {"group_size": 32, "bits": 8}
    for name in ("quantization", "quantization_config"):
        found = parse_quantization({name: plain}, "config.json")
        assert found.format("lm_head") == (MatrixFormat.affine8, 32)
    assert parse_quantization({"text_config": {"quantization": plain}}, "x").format("norm") == (
        MatrixFormat.affine8,
        32,
    )


@pytest.mark.parametrize(
    ("block", "fragment"),
    [
        ({**AFFINE, "bits": 3}, "bits 3"),
        ({**AFFINE, "bits": 6}, "bits 6"),
        ({**AFFINE, "group_size": 16}, "group_size 16"),
        ({**AFFINE, "mode": "mxfp4"}, "mode mxfp4"),
        ({"mode": "affine"}, "bits None"),
        ({**AFFINE, "lm_head": {"bits": 2}}, "bits 2"),
        ({**AFFINE, "lm_head": {"mode": "nvfp4"}}, "mode nvfp4"),
        ({**AFFINE, "bits": True}, "bits must be an integer"),
        ({**AFFINE, "bits": 4.0}, "bits must be an integer"),
        ({**AFFINE, "group_size": "64"}, "group_size must be an integer"),
        ({**AFFINE, "mode": 4}, "mode must be a string"),
        ({**AFFINE, "lm_head": 8}, "lm_head must be an object"),
        ({**AFFINE, "lm_head": {"bits": -8}}, "bits must be between"),
        ({"activation_scheme": "dynamic", "quant_method": "fp8"}, "'fp8' is unknown quantization"),
        ({**AFFINE, "scheme": "awq"}, "scheme is unknown quantization"),
        ({**AFFINE, "lm_head": False, "language_model.lm_head": {"bits": 8}}, "contradicts another entry"),
        ([4, 64], "quantization must be an object"),
    ],
)
def test_unknown_quantization(block: object, fragment: str) -> None:
    with pytest.raises(ConfigError) as caught:
        quantization(block).format("lm_head")
    assert fragment in str(caught.value)
    assert str(caught.value).startswith("folder/config.json")


FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
GATE = {"model.layers.0.mlp.gate": {"bits": 8}}


@pytest.mark.parametrize(
    ("blocks", "gate"),
    [
        ({"quantization": {"group_size": 64, "bits": 4}, "quantization_config": AFFINE}, (MatrixFormat.affine4, 64)),
        ({"quantization": AFFINE, "quantization_config": {**AFFINE, "bits": 8}}, (MatrixFormat.affine4, 64)),
        ({"quantization": AFFINE, "quantization_config": {**AFFINE, **GATE}}, (MatrixFormat.affine4, 64)),
        ({"quantization": {**AFFINE, **GATE}, "quantization_config": AFFINE}, (MatrixFormat.affine8, 64)),
        ({"quantization": {**AFFINE, **GATE}, "quantization_config": FP8}, (MatrixFormat.affine8, 64)),
        ({"quantization": None, "quantization_config": {**AFFINE, **GATE}}, (MatrixFormat.affine8, 64)),
        ({"quantization": {}, "quantization_config": {**AFFINE, **GATE}}, (MatrixFormat.affine8, 64)),
        ({"text_config": {"quantization": AFFINE}, "quantization_config": FP8}, (MatrixFormat.affine4, 64)),
        ({"text_config": {"quantization_config": FP8}, "quantization": AFFINE}, (MatrixFormat.affine4, 64)),
        ({"text_config": {"quantization_config": {**AFFINE, **GATE}}}, (MatrixFormat.affine8, 64)),
    ],
)
def test_quantization_goes_before_quantization_config(blocks: dict[str, Any], gate: object) -> None:
    """As mlx-lm reads them: the second block is a copy, or a remainder of the checkpoint that was converted."""
    assert parse_quantization(blocks, "config.json").format("layers.0.mlp.gate") == gate


@pytest.mark.parametrize("nested", [False, True])
def test_the_block_of_a_quantizer_whose_work_was_undone(
    nested: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Matrices of bfloat16 beside what is left of the fp8 upload's config.json; mlx-lm reads them too."""
    config = random_config(np.random.default_rng(3), nested=nested, tied=False)
    write_checkpoint(tmp_path, config, bits=None, index=False)
    (text_config(config) if nested else config)["quantization_config"] = FP8
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert {matrix.format for matrix in read_checkpoint(tmp_path).source.matrices} == {MatrixFormat.plain}
    assert "quant_method 'fp8' is ignored" in caplog.text

    def scaled(header: dict[str, Any]) -> None:
        name = next(name for name in header if name.endswith("q_proj.weight"))
        header[f"{name}_scale_inv"] = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}

    edit_header(tmp_path / "model.safetensors", scaled)
    with pytest.raises(ConfigError, match="'fp8' is unknown quantization"):
        read_checkpoint(tmp_path)


def test_unknown_keys_are_ignored_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    block = {**AFFINE, "made_by": "somebody", "recipe": 3, "lm_head": {"bits": 8, "calibrated": 0.5}, "notes": {"a": 1}}
    assert quantization(block).format("lm_head") == (MatrixFormat.affine8, 64)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    for name in ("folder/config.json", "made_by", "recipe", "calibrated"):
        assert name in record.getMessage()


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"mode": "mxfp4", "group_size": 32}, "this is mxfp4"),
        ({"mode": "nvfp4", "group_size": 16}, "this is nvfp4"),
        ({"mode": "mxfp8", "bits": 8, "group_size": 32}, "this is mxfp8"),
        ({"bits": 3}, "this is 3-bit"),
        ({"bits": 6}, "this is 6-bit"),
        ({"quant_method": "gptq"}, "'gptq'"),
        ({"quant_method": "x" * 100_000}, "'xxx"),
        ({"quant_method": {"a": "x" * 100_000}}, "an object"),
        ({"zero_point": True}, "zero_point"),
        ({"lm_head": {"bits": 4, "desc_act": True}}, "desc_act"),
    ],
)
def test_refusals_name_a_substitute(change: dict[str, Any], kind: str) -> None:
    with pytest.raises(ConfigError) as caught:
        quantization({**AFFINE, **change}).format("lm_head")
    assert kind in str(caught.value).replace("This", "this")
    assert "take the 4-bit or 8-bit MLX upload" in str(caught.value)
    assert len(str(caught.value)) < 800


@pytest.mark.parametrize("key", ["rope_type", "type"])
def test_mrope_is_the_default_for_text(key: str) -> None:
    raw = flat()
    raw["rope_parameters"] = {**raw["rope_parameters"], key: "mrope", "mrope_section": [11, 11, 10]}
    assert parse(raw) == parse(REAL_CONFIG)


def test_config_and_files_that_disagree(tmp_path: Path) -> None:
    config = random_config(np.random.default_rng(3), nested=False, tied=False)
    write_checkpoint(tmp_path, config, group_size=32, index=False)
    path = tmp_path / "config.json"
    written = json.loads(path.read_text())

    def expect(change: dict[str, Any], *fragments: str) -> None:
        block = {**written["quantization"], **change}
        raw = {**config, "quantization": block} if change else config
        path.write_text(json.dumps(raw))
        with pytest.raises(LilyError) as caught:
            read_checkpoint(tmp_path)
        for fragment in fragments:
            assert fragment in str(caught.value)

    expect({}, "no quantization block", "embed_tokens")
    expect({"bits": 8}, "embed_tokens.weight", "8 bits", "implies U32")
    expect({"group_size": 64}, "group")
    expect({"model.embed_tokens": False}, "embed_tokens.weight", "says that it is not quantized")

    plain = tmp_path / "plain"
    write_checkpoint(plain, config, bits=None, index=False)
    (plain / "config.json").write_text(json.dumps({**config, "quantization": AFFINE}))
    assert {matrix.format for matrix in read_checkpoint(plain).source.matrices} == {MatrixFormat.plain}
    demanded = {**AFFINE, "model.embed_tokens": {"bits": 4}}
    (plain / "config.json").write_text(json.dumps({**config, "quantization": demanded}))
    with pytest.raises(LilyError, match=r"embed_tokens\.scales"):
        read_checkpoint(plain)


def test_with_layers_keeps_the_pattern() -> None:
    assert parse(with_layers(REAL_CONFIG, 6)).layer_types == parse(REAL_CONFIG).layer_types[:6]


@pytest.mark.parametrize("seed", range(50))
def test_random_configs_are_valid(seed: int) -> None:
    config = parse(random_config(np.random.default_rng(seed), group_size=int((1, 32, 64, 128)[seed % 4])))
    assert config.num_linear_layers > 0


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_act": "swish"},
        {"num_experts": None, "num_local_experts": REAL_CONFIG["text_config"]["num_experts"]},
        {"rope_scaling": {"type": "linear", "factor": 1}},
        {"rope_scaling": {"rope_type": "yarn", "factor": 1.0, "original_max_position_embeddings": 262144}},
        {"router_jitter_noise": float("nan"), "attention_dropout": float("inf")},
    ],
    ids=str,
)
def test_other_ways_to_say_the_same(change: dict[str, Any]) -> None:
    assert parse({**flat(), **change}) == parse(REAL_CONFIG)


@pytest.mark.parametrize(
    "scaling",
    [
        {"type": "linear"},
        {"type": "linear", "factor": 1.5},
        {"type": "yarn", "factor": 1, "attention_factor": 1.2},
        {"type": "longrope", "factor": 1},
    ],
    ids=str,
)
def test_scalings_that_change_positions_are_refused(scaling: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="is not supported"):
        parse({**flat(), "rope_scaling": scaling})


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_not_finite_in_fields_that_nobody_reads(tmp_path: Path, text: str) -> None:
    config = random_config(np.random.default_rng(4), nested=False, tied=False)
    write_checkpoint(tmp_path, config, group_size=32, index=False)
    expected = read_checkpoint(tmp_path).config
    path = tmp_path / "config.json"
    written = path.read_text().rstrip()
    path.write_text(written.removesuffix("}") + f', "router_jitter": {text}, "deep": [{{"x": {text}}}]}}')
    assert read_checkpoint(tmp_path).config == expected
    path.write_text(written.removesuffix("}") + f', "norm_topk_prob": {text}}}')
    with pytest.raises(ConfigError, match=r"norm_topk_prob"):
        read_checkpoint(tmp_path)
