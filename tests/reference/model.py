"""The whole forward pass over the blocks, with a state so that a text may be given in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reference import blocks
from reference.config import ReferenceConfig, read_config
from reference.weights import Weights, load_weights


@dataclass
class State:
    """What the layers remember: two arrays each (see blocks.gated_attention and blocks.gated_delta_net)."""

    layers: list[tuple[NDArray, NDArray]] = field(default_factory=list)
    position: int = 0
    # Of each token of the latest call: the smallest margin of the routing over the layers (see blocks.route).
    margins: NDArray = field(default_factory=lambda: np.ones(0))

    def copy(self) -> State:
        """An independent copy (the blocks never write into arrays that they were given)."""
        return State(list(self.layers), self.position, self.margins)


class ReferenceModel:
    """A model as float arrays; all arithmetic is in the type of the weights."""

    def __init__(self, config: ReferenceConfig, weights: Weights) -> None:
        self.config = config
        self.weights = weights
        self.dtype = weights["norm"].dtype

    def new_state(self) -> State:
        """The state before the first token."""
        c, layers = self.config, []
        for layer_type in c.layer_types:
            if layer_type == "full_attention":
                shapes = [(0, c.num_key_value_heads, c.head_dim)] * 2
            else:
                channels = 2 * c.linear_key_dim + c.linear_value_dim
                shapes = [
                    (c.linear_num_value_heads, c.linear_value_head_dim, c.linear_key_head_dim),
                    (c.linear_conv_kernel_dim - 1, channels),
                ]
            layers.append((np.zeros(shapes[0], self.dtype), np.zeros(shapes[1], self.dtype)))
        return State(layers)

    def layer(self, index: int, x: NDArray, state: State) -> NDArray:
        """One layer for x [T, hidden]; replaces the layer's entry in the state."""
        c, w, prefix = self.config, self.weights, f"layers.{index}"
        normed = blocks.rms_norm(x, w[f"{prefix}.input_layernorm"], c.rms_norm_eps)
        if c.layer_types[index] == "full_attention":
            y, memory = blocks.gated_attention(normed, w, f"{prefix}.self_attn", c, state.layers[index])
        else:
            y, memory = blocks.gated_delta_net(normed, w, f"{prefix}.linear_attn", c, state.layers[index])
        state.layers[index] = memory
        x = x + y
        normed = blocks.rms_norm(x, w[f"{prefix}.post_attention_layernorm"], c.rms_norm_eps)
        y, margins = blocks.mixture_of_experts(normed, w, f"{prefix}.mlp", c)
        state.margins = np.minimum(state.margins, margins)
        return x + y

    def hidden_states(self, ids: Sequence[int], state: State) -> list[NDArray]:
        """The stream after the embedding and after every layer; moves the state. [T, hidden] each."""
        stream = [blocks.embed(np.asarray(ids, np.int64), self.weights)]
        state.margins = np.ones(len(ids))
        for index in range(len(self.config.layer_types)):
            stream.append(self.layer(index, stream[-1], state))
        state.position += len(ids)
        return stream

    def forward(self, ids: Sequence[int], state: State | None = None) -> NDArray:
        """Logits [T, vocab_size] for every position of `ids`, which follow what the state has seen."""
        state = self.new_state() if state is None else state
        return blocks.head(self.hidden_states(ids, state)[-1], self.weights, self.config)

    def score(self, ids: Sequence[int]) -> tuple[NDArray, NDArray[np.int32]]:
        """Log-probabilities of ids[1:] and the most likely token at each of those positions, [T - 1] each."""
        logits = self.forward(ids[:-1])
        peak = logits.max(-1)
        normalizer = peak + np.log(np.exp(logits - peak[:, None]).sum(-1))
        log_probabilities = logits[np.arange(len(logits)), np.asarray(ids[1:])] - normalizer
        return log_probabilities, logits.argmax(-1).astype(np.int32)


def load(directory: str | Path, dtype: type[np.floating] = np.float64) -> ReferenceModel:
    """Loads a checkpoint directory in any of the layouts that Lily reads."""
    config = read_config(directory)
    return ReferenceModel(config, load_weights(directory, config, dtype))
