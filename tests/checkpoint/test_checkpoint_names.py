"""Names: prefixes, skipped parts, and lists of names in short."""

from __future__ import annotations

import pytest

from lily.checkpoint.names import is_skipped, split_prefix, summarise


@pytest.mark.parametrize(
    ("raw", "prefix", "name"),
    [
        (
            "language_model.model.layers.0.mlp.gate.weight",
            "language_model.model.",
            "layers.0.mlp.gate.weight",
        ),
        (
            "model.language_model.layers.39.input_layernorm.weight",
            "model.language_model.",
            "layers.39.input_layernorm.weight",
        ),
        ("model.embed_tokens.weight", "model.", "embed_tokens.weight"),
        ("model.norm.weight", "model.", "norm.weight"),
        ("norm.weight", "", "norm.weight"),
        ("lm_head.weight", "", "lm_head.weight"),
        ("language_model.lm_head.scales", "language_model.", "lm_head.scales"),
        ("language_model.model.norm", "language_model.model.", "norm"),
    ],
)
def test_prefixes(raw: str, prefix: str, name: str) -> None:
    assert split_prefix(raw) == (prefix, name)
    assert not is_skipped(raw)


@pytest.mark.parametrize("raw", ["", "weight", "model.normal.weight", "transformer.layers.0.x", "model.model.x"])
def test_other_names(raw: str) -> None:
    assert split_prefix(raw) is None
    assert not is_skipped(raw)


@pytest.mark.parametrize(
    "raw",
    [
        "vision_tower.blocks.0.attn.qkv.weight",
        "model.visual.merger.norm.bias",
        "visual.pos_embed.weight",
        "mtp.layers.0.mlp.gate.weight",
        "model.mtp.fc.weight",
        "language_model.mtp.norm.weight",
        "model.language_model.mtp.norm.weight",
        "model.layers.3.self_attn.rotary_emb.inv_freq",
    ],
)
def test_skipped_names(raw: str) -> None:
    assert is_skipped(raw)


def test_names_in_short() -> None:
    assert summarise([]) == ""
    assert summarise(["model.layers.3.norm"]) == "model.layers.3.norm"
    assert summarise(f"layers.{i}.a" for i in (0, 1, 2, 5, 7, 8)) == "layers.{0-2,5,7-8}.a"
    experts = [f"layers.{i}.mlp.experts.{e}.up.weight" for i in (4, 5) for e in (1, 3)]
    assert summarise([*experts, "lm_head.weight"]) == "layers.{4-5}.mlp.experts.{1,3}.up.weight, lm_head.weight"
