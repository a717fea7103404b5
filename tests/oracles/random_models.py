"""Random tiny models with odd sizes, as vendor-style bfloat16 checkpoints and as MLX affine ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

LINEAR, FULL = "linear_attention", "full_attention"


@dataclass(frozen=True)
class Shape:
    """One point of the space of configurations."""

    name: str
    hidden: int
    vocab: int
    layers: tuple[str, ...]
    attention: tuple[int, int, int]  # heads, key-value heads, head size
    linear: tuple[int, int, int, int]  # key heads, value heads, key size, value size
    experts: tuple[int, int]  # all, chosen
    intermediate: tuple[int, int]  # routed, shared
    rotary_factor: float = 0.25
    taps: int = 4
    tied: bool = False
    extra: dict[str, Any] = field(default_factory=dict)

    def text_config(self) -> dict[str, Any]:
        return {
            "model_type": "qwen3_5_moe_text",
            "hidden_size": self.hidden,
            "vocab_size": self.vocab,
            "num_hidden_layers": len(self.layers),
            "layer_types": list(self.layers),
            "num_attention_heads": self.attention[0],
            "num_key_value_heads": self.attention[1],
            "head_dim": self.attention[2],
            "linear_num_key_heads": self.linear[0],
            "linear_num_value_heads": self.linear[1],
            "linear_key_head_dim": self.linear[2],
            "linear_value_head_dim": self.linear[3],
            "linear_conv_kernel_dim": self.taps,
            "num_experts": self.experts[0],
            "num_experts_per_tok": self.experts[1],
            "moe_intermediate_size": self.intermediate[0],
            "shared_expert_intermediate_size": self.intermediate[1],
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-6,
            "attn_output_gate": True,
            "attention_bias": False,
            "hidden_act": "silu",
            "tie_word_embeddings": self.tied,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10_000_000,
                "partial_rotary_factor": self.rotary_factor,
                "mrope_interleaved": True,
                "mrope_section": [11, 11, 10],
            },
            **self.extra,
        }


# Every size that can be odd is odd somewhere; the last two have a single kind of layer.
PLAIN_SHAPES = (
    Shape(
        "three_heads", 72, 131, (LINEAR, LINEAR, LINEAR, FULL), (3, 1, 32), (3, 6, 16, 24), (7, 3), (40, 24)
    ),
    Shape(
        "all_experts",
        60,
        257,
        (FULL, LINEAR, LINEAR, FULL, LINEAR),
        (5, 5, 16),
        (1, 5, 32, 16),
        (5, 5),
        (17, 9),
    ),
    Shape("tied", 160, 1021, (LINEAR, FULL), (6, 2, 64), (2, 2, 20, 12), (33, 8), (24, 56), 0.5, tied=True),
    Shape(
        "three_taps",
        96,
        1000,
        (LINEAR, FULL, LINEAR),
        (7, 7, 24),
        (5, 5, 8, 40),
        (13, 1),
        (32, 32),
        1.0,
        taps=3,
    ),
    Shape("linear_only", 56, 17, (LINEAR, LINEAR), (1, 1, 16), (1, 3, 48, 8), (9, 2), (8, 16)),
    Shape("attention_only", 40, 19, (FULL, FULL), (9, 3, 40), (1, 1, 8, 8), (3, 2), (16, 8), 0.2),
)

# Affine checkpoints need input sizes that are multiples of the group size.
AFFINE_SHAPES = (
    Shape("affine_odd", 192, 131, (LINEAR, LINEAR, FULL), (3, 1, 64), (3, 9, 64, 64), (7, 3), (64, 192)),
    Shape("affine_wide", 256, 1021, (LINEAR, FULL, FULL), (6, 3, 128), (1, 2, 128, 128), (37, 8), (128, 128)),
    Shape(
        "affine_tied",
        128,
        257,
        (FULL, LINEAR),
        (2, 1, 128),
        (2, 4, 32, 96),
        (5, 2),
        (384, 128),
        0.5,
        tied=True,
    ),
)


def module_shapes(shape: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Canonical names and shapes of every tensor but the head of a tied model."""
    text = shape.hidden
    heads, kv_heads, head_dim = shape.attention
    key_heads, value_heads, key_dim, value_dim = shape.linear
    channels = 2 * key_heads * key_dim + value_heads * value_dim
    yield "embed_tokens", (shape.vocab, text)
    yield "norm", (text,)
    if not shape.tied:
        yield "lm_head", (shape.vocab, text)
    for index, layer_type in enumerate(shape.layers):
        prefix = f"layers.{index}"
        yield f"{prefix}.input_layernorm", (text,)
        yield f"{prefix}.post_attention_layernorm", (text,)
        if layer_type == FULL:
            yield f"{prefix}.self_attn.q_proj", (2 * heads * head_dim, text)
            yield f"{prefix}.self_attn.k_proj", (kv_heads * head_dim, text)
            yield f"{prefix}.self_attn.v_proj", (kv_heads * head_dim, text)
            yield f"{prefix}.self_attn.o_proj", (text, heads * head_dim)
            yield f"{prefix}.self_attn.q_norm", (head_dim,)
            yield f"{prefix}.self_attn.k_norm", (head_dim,)
        else:
            yield f"{prefix}.linear_attn.in_proj_qkv", (channels, text)
            yield f"{prefix}.linear_attn.in_proj_z", (value_heads * value_dim, text)
            yield f"{prefix}.linear_attn.in_proj_a", (value_heads, text)
            yield f"{prefix}.linear_attn.in_proj_b", (value_heads, text)
            yield f"{prefix}.linear_attn.out_proj", (text, value_heads * value_dim)
            yield f"{prefix}.linear_attn.conv1d", (channels, shape.taps)
            yield f"{prefix}.linear_attn.A_log", (value_heads,)
            yield f"{prefix}.linear_attn.dt_bias", (value_heads,)
            yield f"{prefix}.linear_attn.norm", (value_dim,)
        routed, shared = shape.intermediate
        yield f"{prefix}.mlp.gate", (shape.experts[0], text)
        yield f"{prefix}.mlp.shared_expert_gate", (1, text)
        for name in ("gate_proj", "up_proj"):
            yield f"{prefix}.mlp.experts.{name}", (shape.experts[0], routed, text)
            yield f"{prefix}.mlp.shared_expert.{name}", (shared, text)
        yield f"{prefix}.mlp.experts.down_proj", (shape.experts[0], text, routed)
        yield f"{prefix}.mlp.shared_expert.down_proj", (text, shared)


def random_tensor(name: str, shape: tuple[int, ...], random: np.random.Generator) -> NDArray[np.float32]:
    """Values that keep activations near one, heads that forget at different speeds, and clear routing."""
    kind = name.rpartition(".")[2]
    if kind == "A_log":
        values = random.uniform(np.log(0.02), np.log(8.0), shape)
    elif kind == "dt_bias":
        values = random.uniform(-2.0, 1.0, shape)
    elif kind == "conv1d":
        values = random.normal(0.0, 0.5, shape)
    elif "norm" in kind:
        values = random.normal(1.0, 0.2, shape)
    elif kind == "embed_tokens":
        values = random.normal(
            0.0, 0.1, shape
        )  # small, so that the layers decide, also when the head is tied
    else:
        gain = 2.0 if kind in ("lm_head", "gate") else 1.0
        values = random.normal(0.0, gain / np.sqrt(shape[-1]), shape)
    return values.astype(np.float32)


def random_tensors(shape: Shape, seed: int) -> dict[str, NDArray[np.float32]]:
    """Random float32 tensors under canonical names; norm weights multiply as they are."""
    random = np.random.default_rng(seed)
    return {name: random_tensor(name, size, random) for name, size in module_shapes(shape)}


def quantize(
    values: NDArray[np.float32], group_size: int, bits: int, random: np.random.Generator
) -> tuple[NDArray[np.uint32], NDArray[np.float16], NDArray[np.float16]]:
    """Affine codes, packed, with float16 scales and biases; scales take either sign."""
    groups = values.reshape(*values.shape[:-1], -1, group_size)
    low, high = groups.min(-1), groups.max(-1)
    scales = np.maximum((high - low) / (2**bits - 1), 1e-4).astype(np.float16)
    flip = random.random(scales.shape) < 0.5
    biases = np.where(flip, high, low).astype(np.float16)
    scales = np.where(flip, -scales, scales)
    steps = (groups - biases[..., None].astype(np.float32)) / scales[..., None].astype(np.float32)
    codes = (
        np.clip(np.rint(steps), 0, 2**bits - 1).astype(np.uint32).reshape(*values.shape[:-1], -1, 32 // bits)
    )
    packed = np.bitwise_or.reduce(codes << np.arange(0, 32, bits, dtype=np.uint32), axis=-1)
    return packed, scales, biases


def write_affine(directory: Path, shape: Shape, seed: int, group_size: int = 64, bits: int = 4) -> None:
    """Writes a checkpoint as MLX lays it out: stacked experts, router and shared gate at 8 bits."""
    random = np.random.default_rng([seed, 1])
    common = {"group_size": group_size, "bits": bits, "mode": "affine"}
    quantization: dict[str, Any] = dict(common)
    tensors: dict[str, NDArray] = {}
    for name, values in random_tensors(shape, seed).items():
        name = name.replace("mlp.experts", "mlp.switch_mlp")
        full = f"language_model.{name}" if name == "lm_head" else f"language_model.model.{name}"
        kind = name.rpartition(".")[2]
        if kind in ("A_log", "dt_bias"):
            tensors[full] = values
        elif kind == "conv1d":
            tensors[f"{full}.weight"] = values[:, :, None].astype(np.float16)
        elif values.ndim == 1:
            tensors[f"{full}.weight"] = values.astype(np.float16)
        else:
            wide = kind in ("gate", "shared_expert_gate")
            if wide:
                quantization[full] = {"group_size": group_size, "bits": 8}
            packed, scales, biases = quantize(values, group_size, 8 if wide else bits, random)
            tensors.update({f"{full}.weight": packed, f"{full}.scales": scales, f"{full}.biases": biases})
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / "model.safetensors")
    config = {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "model_type": "qwen3_5_moe",
        "quantization": quantization,
        "quantization_config": quantization,
        "text_config": shape.text_config(),
        "tie_word_embeddings": shape.tied,
    }
    (directory / "config.json").write_text(json.dumps(config, indent=2))


def write_plain(directory: Path, shape: Shape, seed: int, fused: bool = True) -> None:
    """Writes a vendor-style float16 checkpoint: zero-centred norms, [channels, 1, taps] convolutions, and fused
    experts or one matrix per expert."""
    tensors: dict[str, NDArray] = {}
    source = random_tensors(shape, seed)
    for name, values in source.items():
        full = name if name == "lm_head" else f"model.language_model.{name}"
        kind = name.rpartition(".")[2]
        values = values.astype(np.float16)
        if kind in ("A_log", "dt_bias"):
            tensors[full] = values
        elif kind == "conv1d":
            tensors[f"{full}.weight"] = values[:, None]
        elif values.ndim == 1 and "linear_attn" not in name:
            tensors[f"{full}.weight"] = values - np.float16(1)
        elif "mlp.experts" not in name:
            tensors[f"{full}.weight"] = values
        elif not fused:
            prefix = full.removesuffix(f".{kind}")
            tensors.update({f"{prefix}.{i}.{kind}.weight": expert.copy() for i, expert in enumerate(values)})
        elif kind == "down_proj":
            tensors[full] = values
        elif kind == "gate_proj":
            both = [values, source[name.replace("gate_proj", "up_proj")].astype(np.float16)]
            tensors[full.replace("gate_proj", "gate_up_proj")] = np.concatenate(both, 1)
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / "model.safetensors")
    config = {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "model_type": "qwen3_5_moe",
        "text_config": shape.text_config(),
        "tie_word_embeddings": shape.tied,
    }
    (directory / "config.json").write_text(json.dumps(config, indent=2))
