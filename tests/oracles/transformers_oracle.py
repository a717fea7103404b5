"""transformers' own Qwen3_5MoeForCausalLM as an oracle, in float32 on the CPU. Imports torch when used."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import Qwen3_5MoeForCausalLM
from transformers.models.qwen3_5_moe.configuration_qwen3_5_moe import Qwen3_5MoeTextConfig

from oracles.random_models import Shape, resemble
from reference import load_weights, read_config


def text_config(values: dict[str, Any]) -> Qwen3_5MoeTextConfig:
    """transformers' configuration from a checkpoint's text configuration."""
    return Qwen3_5MoeTextConfig(**{name: value for name, value in values.items() if name != "model_type"})


def randomize(model: torch.nn.Module, key_dim: int, seed: int) -> None:
    """Replaces the timid default initialization: routing, gates and decays get something to do."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith("A_log"):
                noise = noise.mul(1.5).sub(1.0)
            elif name.endswith("linear_attn.norm.weight"):
                noise = noise.mul(0.2).add(1.0)
            elif "norm" in name:
                noise = noise.mul(0.2)
            elif "conv1d" in name:
                noise = noise.mul(0.5)
            elif parameter.ndim > 1 and "embed_tokens" not in name:
                gain = 2.0 if name.endswith(("lm_head.weight", "mlp.gate.weight")) else 1.0
                noise = noise.mul(gain / parameter.shape[-1] ** 0.5)
            if name.endswith(("in_proj_qkv.weight", "conv1d.weight")):
                resemble(noise[:key_dim], noise[key_dim : 2 * key_dim])
            parameter.copy_(noise)


def save_random(directory: Path, shape: Shape, seed: int) -> None:
    """Lets transformers itself write a random bfloat16 checkpoint."""
    model = Qwen3_5MoeForCausalLM(text_config(shape.text_config()))
    randomize(model, shape.linear[0] * shape.linear[2], seed)
    model.to(torch.bfloat16).save_pretrained(directory)


def load_saved(directory: Path) -> Qwen3_5MoeForCausalLM:
    """Loads a checkpoint through transformers, computing in float32."""
    return Qwen3_5MoeForCausalLM.from_pretrained(directory, dtype=torch.float32, experts_implementation="eager").eval()


def load_dequantized(directory: Path, text: dict[str, Any]) -> Qwen3_5MoeForCausalLM:
    """An MLX checkpoint expanded to float32, in transformers' class and its zero-centred convention."""
    weights = load_weights(directory, read_config(directory), np.float32)
    state = {}
    for name, array in weights.items():
        kind = name.rpartition(".")[2]
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        if kind == "conv1d":
            tensor = tensor[:, None]
        elif "norm" in kind and "linear_attn" not in name:
            tensor = tensor - 1
        if "mlp.experts" in name or kind in ("A_log", "dt_bias"):
            state[f"model.{name}"] = tensor
        else:
            state[f"{name}.weight" if name == "lm_head" else f"model.{name}.weight"] = tensor
    for name in [name for name in state if name.endswith("experts.gate_proj")]:
        up = state.pop(name.replace("gate_proj", "up_proj"))
        state[name.replace("gate_proj", "gate_up_proj")] = torch.cat([state.pop(name), up], 1)
    model = Qwen3_5MoeForCausalLM(text_config(text)).float().eval()
    model.set_experts_implementation("eager")
    model.load_state_dict(state)
    return model


def all_logits(model: Qwen3_5MoeForCausalLM, ids: Sequence[int]) -> NDArray[np.float32]:
    """[positions, vocab_size]."""
    with torch.no_grad():
        return model(torch.tensor([list(ids)]), use_cache=False).logits[0].float().numpy()
