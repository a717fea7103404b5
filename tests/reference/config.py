"""The dimensions of a text model, read from a checkpoint's config.json."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Fields that are taken over as they are.
SAME_NAMES = (
    "hidden_size",
    "vocab_size",
    "num_attention_heads",
    "num_key_value_heads",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
    "num_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
)


@dataclass(frozen=True)
class ReferenceConfig:
    """Dimensions and constants; names as in the checkpoint's own configuration."""

    hidden_size: int
    vocab_size: int
    layer_types: tuple[str, ...]  # "linear_attention" or "full_attention", one per layer
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rotary_dim: int  # leading dimensions of each head that are rotated
    rope_theta: float
    linear_num_key_heads: int
    linear_num_value_heads: int
    linear_key_head_dim: int
    linear_value_head_dim: int
    linear_conv_kernel_dim: int
    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    shared_expert_intermediate_size: int
    norm_topk_prob: bool
    rms_norm_eps: float
    tie_word_embeddings: bool
    quantization: dict[str, Any] | None  # group_size, bits and per-module overrides, or None

    @property
    def linear_key_dim(self) -> int:
        return self.linear_num_key_heads * self.linear_key_head_dim

    @property
    def linear_value_dim(self) -> int:
        return self.linear_num_value_heads * self.linear_value_head_dim


def layer_types_of(text: dict[str, Any]) -> tuple[str, ...]:
    """The given list, or full attention in every `full_attention_interval`-th layer."""
    if text.get("layer_types"):
        return tuple(text["layer_types"])
    interval = text.get("full_attention_interval", 4)
    count = text["num_hidden_layers"]
    return tuple("linear_attention" if (i + 1) % interval else "full_attention" for i in range(count))


def parse_config(top: dict[str, Any]) -> ReferenceConfig:
    """Reads a nested (text_config) or a flat configuration."""
    text = top.get("text_config") or top
    rope = text.get("rope_parameters") or {}
    factor = rope.get("partial_rotary_factor", text.get("partial_rotary_factor", 0.25))
    head_dim = text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"]
    return ReferenceConfig(
        **{name: text[name] for name in SAME_NAMES},
        layer_types=layer_types_of(text),
        head_dim=head_dim,
        rotary_dim=int(head_dim * factor),
        rope_theta=float(rope.get("rope_theta", text.get("rope_theta", 10_000_000))),
        norm_topk_prob=text.get("norm_topk_prob", True),
        rms_norm_eps=text.get("rms_norm_eps", 1e-6),
        tie_word_embeddings=bool(text.get("tie_word_embeddings", top.get("tie_word_embeddings", False))),
        quantization=top.get("quantization") or top.get("quantization_config"),
    )


def read_config(directory: str | Path) -> ReferenceConfig:
    """Reads config.json of a checkpoint directory."""
    return parse_config(json.loads((Path(directory) / "config.json").read_text(encoding="utf-8")))
