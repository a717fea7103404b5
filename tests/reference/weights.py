"""Turns any of the checkpoint layouts in use into one dictionary of float arrays under canonical names.

Canonical names have no prefix ("layers.3.self_attn.q_proj", "embed_tokens", "lm_head", "norm"). Experts are
stacked: "layers.0.mlp.experts.gate_proj" [experts, intermediate, hidden]. Norm weights multiply as they
are (no "+1" left to add). The convolution is [channels, taps], oldest tap first.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reference.config import ReferenceConfig
from reference.dequantize import dequantize, quantization_of
from reference.tensor_files import read_directory

Weights = dict[str, NDArray]

PREFIXES = ("language_model.model.", "model.language_model.", "language_model.", "model.", "")
SHIFTED_NORMS = ("input_layernorm", "post_attention_layernorm", "q_norm", "k_norm")
EXPERT = re.compile(r"(.*\.mlp\.experts)\.(\d+)\.(\w+)")


def strip_prefix(name: str) -> str:
    """Removes the first prefix that fits."""
    return name[len(next(prefix for prefix in PREFIXES if name.startswith(prefix))) :]


def collect_modules(tensors: dict[str, NDArray]) -> dict[str, dict[str, NDArray]]:
    """{"layers.0.mlp.gate": {"weight": ..., "scales": ..., "biases": ...}, ...}."""
    modules: dict[str, dict[str, NDArray]] = defaultdict(dict)
    for name, array in tensors.items():
        name = strip_prefix(name)
        module, _, part = name.rpartition(".")
        if part not in ("weight", "scales", "biases"):  # A_log, dt_bias, experts.gate_up_proj
            module, part = name, "weight"
        modules[module][part] = array
    return modules


def stack_experts(weights: Weights) -> Weights:
    """Replaces one matrix per expert, or fused gate and up matrices, by stacked ones in "mlp.experts"."""
    result: Weights = {}
    single: dict[str, dict[int, NDArray]] = defaultdict(dict)
    for name, array in weights.items():
        match = EXPERT.fullmatch(name)
        if match:
            single[f"{match[1]}.{match[3]}"][int(match[2])] = array
        elif name.endswith("experts.gate_up_proj"):
            half = array.shape[1] // 2
            result[name.replace("gate_up_proj", "gate_proj")] = array[:, :half]
            result[name.replace("gate_up_proj", "up_proj")] = array[:, half:]
        else:
            result[name.replace("switch_mlp", "experts")] = array
    for name, experts in single.items():
        result[name] = np.stack([experts[i] for i in range(len(experts))])
    return result


def has_zero_centred_norms(weights: Weights) -> bool:
    """The vendor's layout keeps the convolution as [channels, 1, taps] and norm weights as w - 1; MLX's has
    [channels, taps, 1]. A model without a convolution tells by the name that MLX gives to stacked experts."""
    for name, array in weights.items():
        if name.endswith("conv1d"):
            return array.shape[-1] != 1
    return not any("switch_mlp" in name for name in weights)


def load_weights(directory: str | Path, config: ReferenceConfig, dtype: type[np.floating] = np.float64) -> Weights:
    """Reads every text tensor of a checkpoint directory."""
    weights: Weights = {}
    for module, parts in collect_modules(read_directory(Path(directory))).items():
        if "scales" in parts:
            assert config.quantization is not None, f"{module} has scales, but config.json has no quantization"
            group_size, bits = quantization_of(module, config.quantization, PREFIXES)
            weights[module] = dequantize(parts["weight"], parts["scales"], parts["biases"], group_size, bits, dtype)
        else:
            weights[module] = parts["weight"].astype(dtype)
    shift = has_zero_centred_norms(weights)
    weights = stack_experts(weights)
    for name, array in weights.items():
        kind = name.rpartition(".")[2]
        if kind == "conv1d":
            weights[name] = array.reshape(array.shape[0], -1)
        elif shift and (kind in SHIFTED_NORMS or name == "norm"):
            weights[name] = array + 1
    if "lm_head" not in weights or config.tie_word_embeddings:
        weights["lm_head"] = weights["embed_tokens"]
    return weights
