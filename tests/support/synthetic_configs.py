"""Configs for synthetic checkpoints: the real model's dimensions, and small random ones with odd sizes."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

REAL_CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    "model_type": "qwen3_5_moe",
    "tie_word_embeddings": False,
    "image_token_id": 248056,
    "video_token_id": 248057,
    "vision_start_token_id": 248053,
    "vision_end_token_id": 248054,
    "text_config": {
        "model_type": "qwen3_5_moe_text",
        "dtype": "bfloat16",
        "hidden_size": 2048,
        "num_hidden_layers": 40,
        "vocab_size": 248320,
        "max_position_embeddings": 262144,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "attn_output_gate": True,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "full_attention_interval": 4,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 10,
        "linear_conv_kernel_dim": 4,
        "linear_num_key_heads": 16,
        "linear_key_head_dim": 128,
        "linear_num_value_heads": 32,
        "linear_value_head_dim": 128,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "mamba_ssm_dtype": "float32",
        "mtp_num_hidden_layers": 1,
        "partial_rotary_factor": 0.25,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000000,
            "partial_rotary_factor": 0.25,
            "mrope_section": [11, 11, 10],
            "mrope_interleaved": True,
        },
        "eos_token_id": 248044,
        "tie_word_embeddings": False,
    },
}


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """The part of a config that describes the text model."""
    text: dict[str, Any] = config.get("text_config", config)
    return text


def with_layers(config: dict[str, Any], layers: int) -> dict[str, Any]:
    """The same model with another number of layers, in the same pattern of layer types."""
    changed = copy.deepcopy(config)
    text = text_config(changed)
    interval = text.get("full_attention_interval", 4)
    text["num_hidden_layers"] = layers
    text["layer_types"] = [
        "linear_attention" if (layer + 1) % interval else "full_attention" for layer in range(layers)
    ]
    return changed


def layer_types(config: dict[str, Any]) -> list[str]:
    """Type of every layer, from layer_types or from full_attention_interval."""
    text = text_config(config)
    interval = text.get("full_attention_interval", 4)
    default = [
        "linear_attention" if (layer + 1) % interval else "full_attention" for layer in range(text["num_hidden_layers"])
    ]
    return text.get("layer_types") or default


def random_config(
    rng: np.random.Generator, *, group_size: int = 32, nested: bool | None = None, tied: bool | None = None
) -> dict[str, Any]:
    """A small valid config with odd counts of heads, experts and vocabulary rows.

    The columns of every matrix are multiples of `group_size` (1: any columns, for plain matrices).
    `nested` and `tied` are random where they are None.
    """

    def size(low: int, high: int) -> int:
        return int(rng.integers(low, high + 1))

    def columns(low: int, high: int) -> int:
        unit = group_size if group_size > 1 else 2
        return unit * size(max(1, low // unit), max(1, high // unit))

    layers = size(2, 5)
    key_value_heads, key_heads, experts = size(1, 3), size(1, 3), size(3, 11)
    types = [str(rng.choice(["linear_attention", "full_attention"])) for _ in range(layers)]
    types[size(0, layers - 1)] = "linear_attention"
    text: dict[str, Any] = {
        "model_type": "qwen3_5_moe_text",
        "hidden_size": columns(32, 128),
        "num_hidden_layers": layers,
        "vocab_size": size(50, 301),
        "max_position_embeddings": 4096,
        "num_attention_heads": key_value_heads * size(1, 4),
        "num_key_value_heads": key_value_heads,
        "head_dim": 8 * size(2, 5) if group_size == 1 else columns(32, 64),
        "layer_types": types,
        "linear_conv_kernel_dim": size(2, 5),
        "linear_num_key_heads": key_heads,
        "linear_key_head_dim": 4 * size(2, 9),
        "linear_num_value_heads": key_heads * size(1, 3),
        "linear_value_head_dim": columns(8, 64),
        "num_experts": experts,
        "num_experts_per_tok": size(1, min(4, experts)),
        "moe_intermediate_size": columns(16, 96),
        "shared_expert_intermediate_size": columns(16, 96),
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": float(rng.choice([1e4, 1e6, 1e7])),
            "partial_rotary_factor": float(rng.choice([0.25, 0.5, 1.0])),
        },
    }
    text["tie_word_embeddings"] = bool(rng.integers(2)) if tied is None else tied
    if bool(rng.integers(2)) if nested is None else nested:
        return {
            "model_type": "qwen3_5_moe",
            "text_config": text,
            "tie_word_embeddings": text["tie_word_embeddings"],
        }
    return text
