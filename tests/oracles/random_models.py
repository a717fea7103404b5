"""Random tiny models with odd sizes, as vendor-style bfloat16 checkpoints and as MLX affine ones."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reference.tensor_files import from_bfloat16, to_bfloat16

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
    Shape("three_heads", 72, 131, (LINEAR, LINEAR, LINEAR, FULL), (3, 1, 32), (3, 6, 16, 24), (7, 3), (40, 24)),
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
        values = random.normal(0.0, 1.0, shape)
    else:
        gain = 2.0 if kind in ("lm_head", "gate") else 1.0
        values = random.normal(0.0, gain / np.sqrt(shape[-1]), shape)
    return values.astype(np.float32)


def random_tensors(shape: Shape, seed: int) -> dict[str, NDArray[np.float32]]:
    """Random float32 tensors under canonical names; norm weights multiply as they are."""
    random = np.random.default_rng(seed)
    tensors = {name: random_tensor(name, size, random) for name, size in module_shapes(shape)}
    key_dim = shape.linear[0] * shape.linear[2]
    for name, values in tensors.items():
        if name.endswith(("in_proj_qkv", "conv1d")):
            resemble(values[:key_dim], values[key_dim : 2 * key_dim])
    return tensors


def resemble(queries: Any, keys: Any) -> None:
    """Turns random keys, in place, into ones whose products with the queries are not small by cancellation.

    The first outputs of a Gated DeltaNet head are such products, normalized: with independent queries and keys a
    random model would be far worse conditioned than a trained one. So made, float32 arithmetic errs by 1e-6 of the
    largest logit, as it does on lily-tiny. Works on NumPy arrays and on torch tensors.
    """
    keys *= 0.5
    keys += 0.85 * queries


def quantize(
    values: NDArray[np.float32], group_size: int, bits: int, random: np.random.Generator
) -> tuple[NDArray[np.uint32], NDArray[np.float32], NDArray[np.float32]]:
    """Packed affine codes, scales and biases. Scales take either sign; both fit into bfloat16."""
    groups = values.reshape(*values.shape[:-1], -1, group_size)
    low, high = groups.min(-1), groups.max(-1)
    flip = random.random(low.shape) < 0.5
    scales = np.maximum((high - low) / (2**bits - 1), 1e-4)
    scales = from_bfloat16(to_bfloat16(np.where(flip, -scales, scales)))
    biases = from_bfloat16(to_bfloat16(np.where(flip, high, low)))
    steps = np.rint((groups - biases[..., None]) / scales[..., None])
    codes = np.clip(steps, 0, 2**bits - 1).astype(np.uint32).reshape(*values.shape[:-1], -1, 32 // bits)
    packed = np.bitwise_or.reduce(codes << np.arange(0, 32, bits, dtype=np.uint32), axis=-1)
    return packed, scales, biases


def encode(values: NDArray, dtype: str) -> tuple[str, NDArray]:
    """A tensor as (safetensors' dtype, the array whose bytes to store)."""
    if dtype == "BF16":
        return dtype, to_bfloat16(values)
    return dtype, values.astype({"F16": np.float16, "F32": np.float32, "U32": np.uint32}[dtype])


def save(path: Path, tensors: Mapping[str, tuple[str, NDArray]]) -> None:
    """Writes a safetensors file whose data starts at an odd offset, which the format allows."""
    header, offset = {}, 0
    for name, (dtype, array) in tensors.items():
        header[name] = {
            "dtype": dtype,
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (1 - len(text) % 2)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, array in tensors.values():
            file.write(array.tobytes())


def write_directory(
    directory: Path, tensors: Mapping[str, tuple[str, NDArray]], text: dict[str, Any], **top: Any
) -> None:
    """Writes model.safetensors and a nested config.json."""
    directory.mkdir(parents=True, exist_ok=True)
    save(directory / "model.safetensors", tensors)
    config = {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "model_type": "qwen3_5_moe",
        "text_config": text,
        "tie_word_embeddings": text["tie_word_embeddings"],
        **top,
    }
    (directory / "config.json").write_text(json.dumps(config, indent=2))


def write_affine(
    directory: Path, shape: Shape, seed: int, group_size: int = 64, bits: int = 4, dtype: str = "BF16"
) -> None:
    """Writes a checkpoint as MLX lays it out: stacked experts, router and shared gate at 8 bits. `dtype` is
    that of scales, biases, norms and convolutions."""
    random = np.random.default_rng([seed, 1])
    quantization: dict[str, Any] = {"group_size": group_size, "bits": bits, "mode": "affine"}
    tensors: dict[str, tuple[str, NDArray]] = {}
    for name, values in random_tensors(shape, seed).items():
        name = name.replace("mlp.experts", "mlp.switch_mlp")
        full = f"language_model.{name}" if name == "lm_head" else f"language_model.model.{name}"
        kind = name.rpartition(".")[2]
        if kind in ("A_log", "dt_bias"):
            tensors[full] = encode(values, "F32")
        elif kind == "conv1d":
            tensors[f"{full}.weight"] = encode(values[:, :, None], dtype)
        elif values.ndim == 1:
            tensors[f"{full}.weight"] = encode(values, dtype)
        else:
            wide = kind in ("gate", "shared_expert_gate")
            if wide:
                quantization[full] = {"group_size": group_size, "bits": 8}
            packed, scales, biases = quantize(values, group_size, 8 if wide else bits, random)
            tensors[f"{full}.weight"] = encode(packed, "U32")
            tensors[f"{full}.scales"] = encode(scales, dtype)
            tensors[f"{full}.biases"] = encode(biases, dtype)
    text = shape.text_config()
    write_directory(directory, tensors, text, quantization=quantization, quantization_config=quantization)


def write_plain(
    directory: Path,
    weights: Mapping[str, NDArray],
    text: dict[str, Any],
    fused: bool = True,
    dtype: str = "BF16",
) -> None:
    """Writes weights under canonical names as the vendor does: zero-centred norms, convolutions
    [channels, 1, taps], experts fused or one by one."""
    tensors: dict[str, tuple[str, NDArray]] = {}
    for name, values in weights.items():
        full = name if name == "lm_head" else f"model.language_model.{name}"
        kind = name.rpartition(".")[2]
        if kind in ("A_log", "dt_bias"):
            tensors[full] = encode(values, dtype)
        elif kind == "conv1d":
            tensors[f"{full}.weight"] = encode(values[:, None], dtype)
        elif values.ndim == 1 and "linear_attn" not in name:
            tensors[f"{full}.weight"] = encode(values - 1, dtype)
        elif "mlp.experts" not in name:
            tensors[f"{full}.weight"] = encode(values, dtype)
        elif not fused:
            prefix = full.removesuffix(f".{kind}")
            for index, expert in enumerate(values):
                tensors[f"{prefix}.{index}.{kind}.weight"] = encode(expert, dtype)
        elif kind == "down_proj":
            tensors[full] = encode(values, dtype)
        elif kind == "gate_proj":
            both = np.concatenate([values, weights[name.replace("gate_proj", "up_proj")]], 1)
            tensors[full.replace("gate_proj", "gate_up_proj")] = encode(both, dtype)
    write_directory(directory, tensors, text)


def write_plain_random(directory: Path, shape: Shape, seed: int, fused: bool = True, dtype: str = "BF16") -> None:
    """A random checkpoint in the vendor's layout."""
    write_plain(directory, random_tensors(shape, seed), shape.text_config(), fused, dtype)
