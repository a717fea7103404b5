"""One function per block of the network. T tokens in, T tokens out; every function is a formula to read.

Shapes: T tokens, H hidden size, V vocabulary. Matrices are stored [outputs, inputs], so a linear map is
x @ W.T. Weights come from `weights.py`; `prefix` names the module, for example "layers.3.self_attn".
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from reference.config import ReferenceConfig
from reference.weights import Weights

L2_EPSILON = 1e-6


def sigmoid(x: NDArray) -> NDArray:
    """1 / (1 + exp(-x)), without overflow."""
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, e) / (1 + e)


def silu(x: NDArray) -> NDArray:
    return x * sigmoid(x)


def softplus(x: NDArray) -> NDArray:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def softmax(x: NDArray) -> NDArray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def rms_norm(x: NDArray, weight: NDArray, epsilon: float) -> NDArray:
    """x / sqrt(mean(x^2) + epsilon) * weight, over the last axis."""
    return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + x.dtype.type(epsilon)) * weight


def l2_norm(x: NDArray) -> NDArray:
    """x / sqrt(sum(x^2) + 1e-6), over the last axis: epsilon is added to the sum."""
    return x / np.sqrt(np.sum(x * x, -1, keepdims=True) + x.dtype.type(L2_EPSILON))


def embed(ids: NDArray[np.integer], weights: Weights) -> NDArray:
    """[T] -> [T, H]."""
    return weights["embed_tokens"][ids]


def rotate(x: NDArray, first_position: int, rotary_dim: int, theta: float) -> NDArray:
    """RoPE on the leading rotary_dim dimensions; dimension i turns together with i + rotary_dim / 2.

    x: [T, heads, head_dim], the first token at `first_position`.
    """
    half = rotary_dim // 2
    positions = first_position + np.arange(len(x))
    angles = positions[:, None] * theta ** (-2.0 * np.arange(half) / rotary_dim)  # [T, half]
    cosine, sine = (f(angles).astype(x.dtype)[:, None, :] for f in (np.cos, np.sin))
    a, b, rest = x[..., :half], x[..., half:rotary_dim], x[..., rotary_dim:]
    return np.concatenate([a * cosine - b * sine, b * cosine + a * sine, rest], -1)


def gated_attention(
    x: NDArray, weights: Weights, prefix: str, config: ReferenceConfig, cache: tuple[NDArray, NDArray]
) -> tuple[NDArray, tuple[NDArray, NDArray]]:
    """Causal grouped-query attention whose output is multiplied by a sigmoid gate.

    x: [T, H]. cache: keys and values of the P earlier tokens, [P, kv_heads, head_dim] each.
    q_proj gives, for each head, head_dim query rows and then head_dim gate rows.
    """
    count, heads, kv_heads, dim = (
        len(x),
        config.num_attention_heads,
        config.num_key_value_heads,
        config.head_dim,
    )
    past = len(cache[0])
    projected = (x @ weights[f"{prefix}.q_proj"].T).reshape(count, heads, 2, dim)
    query, gate = projected[:, :, 0], projected[:, :, 1]
    key = (x @ weights[f"{prefix}.k_proj"].T).reshape(count, kv_heads, dim)
    value = (x @ weights[f"{prefix}.v_proj"].T).reshape(count, kv_heads, dim)
    query = rms_norm(query, weights[f"{prefix}.q_norm"], config.rms_norm_eps)
    key = rms_norm(key, weights[f"{prefix}.k_norm"], config.rms_norm_eps)
    query = rotate(query, past, config.rotary_dim, config.rope_theta)
    key = rotate(key, past, config.rotary_dim, config.rope_theta)
    keys, values = np.concatenate([cache[0], key]), np.concatenate([cache[1], value])
    hidden = np.arange(past + count)[None, :] > past + np.arange(count)[:, None]  # later tokens, [T, P + T]
    output = np.empty_like(query)
    for head in range(heads):
        kv = head // (heads // kv_heads)
        scores = query[:, head] @ keys[:, kv].T / np.sqrt(x.dtype.type(dim))
        scores[hidden] = -np.inf
        output[:, head] = softmax(scores) @ values[:, kv]
    output = output * sigmoid(gate)
    return output.reshape(count, -1) @ weights[f"{prefix}.o_proj"].T, (keys, values)


def causal_convolution(x: NDArray, kernel: NDArray, previous: NDArray) -> tuple[NDArray, NDArray]:
    """Depthwise: y[t] = sum over taps j of kernel[:, j] * x[t - taps + 1 + j].

    x: [T, channels], kernel: [channels, taps], previous: the taps - 1 inputs before x. Returns y and the last
    taps - 1 inputs.
    """
    taps = kernel.shape[1]
    padded = np.concatenate([previous, x])
    y = sum(padded[j : j + len(x)] * kernel[:, j] for j in range(taps))
    return y, padded[len(padded) - (taps - 1) :]


def delta_rule(
    query: NDArray, key: NDArray, value: NDArray, decay: NDArray, beta: NDArray, state: NDArray
) -> tuple[NDArray, NDArray]:
    """The gated delta rule, token by token.

    query, key: [T, heads, key_dim]; value: [T, heads, value_dim]; decay, beta: [T, heads];
    state S: [heads, value_dim, key_dim]. Per token and head:
        S = decay S;  d = beta (v - S k);  S = S + d k^T;  y = S q
    """
    output = np.empty_like(value)
    state = state.copy()
    for t in range(len(value)):
        state *= decay[t, :, None, None]
        delta = beta[t, :, None] * (value[t] - (state @ key[t, :, :, None])[..., 0])
        state += delta[:, :, None] * key[t, :, None, :]
        output[t] = (state @ query[t, :, :, None])[..., 0]
    return output, state


def gated_delta_net(
    x: NDArray, weights: Weights, prefix: str, config: ReferenceConfig, state: tuple[NDArray, NDArray]
) -> tuple[NDArray, tuple[NDArray, NDArray]]:
    """x: [T, H]. state: recurrent state [value_heads, value_dim, key_dim], last inputs of the convolution."""
    count, key_dim, value_dim = len(x), config.linear_key_head_dim, config.linear_value_head_dim
    key_heads, value_heads = config.linear_num_key_heads, config.linear_num_value_heads
    recurrent, previous = state
    mixed = x @ weights[f"{prefix}.in_proj_qkv"].T
    mixed, previous = causal_convolution(mixed, weights[f"{prefix}.conv1d"], previous)
    query, key, value = np.split(silu(mixed), [key_heads * key_dim, 2 * key_heads * key_dim], axis=-1)
    query = l2_norm(query.reshape(count, key_heads, key_dim)) / np.sqrt(x.dtype.type(key_dim))
    key = l2_norm(key.reshape(count, key_heads, key_dim))
    # Value head h reads key head h // (value_heads / key_heads).
    query, key = (np.repeat(a, value_heads // key_heads, axis=1) for a in (query, key))
    alpha = x @ weights[f"{prefix}.in_proj_a"].T
    decay = np.exp(-np.exp(weights[f"{prefix}.A_log"]) * softplus(alpha + weights[f"{prefix}.dt_bias"]))
    beta = sigmoid(x @ weights[f"{prefix}.in_proj_b"].T)
    value = value.reshape(count, value_heads, value_dim)
    output, recurrent = delta_rule(query, key, value, decay, beta, recurrent)
    z = (x @ weights[f"{prefix}.in_proj_z"].T).reshape(output.shape)
    output = rms_norm(output, weights[f"{prefix}.norm"], config.rms_norm_eps) * silu(z)
    return output.reshape(count, -1) @ weights[f"{prefix}.out_proj"].T, (recurrent, previous)


def gated_mlp(x: NDArray, gate: NDArray, up: NDArray, down: NDArray) -> NDArray:
    return (silu(x @ gate.T) * (x @ up.T)) @ down.T


def route(x: NDArray, gate: NDArray, config: ReferenceConfig) -> tuple[NDArray, NDArray, NDArray]:
    """The experts of each token and their weights, [T, k] each; the lower index wins a tie.

    Also how clear the choice is, [T]: by which share the best rejected probability is below the last chosen one.
    """
    probabilities = softmax(x @ gate.T)  # over all experts
    order = np.argsort(-probabilities, axis=-1, kind="stable")
    ordered = np.take_along_axis(probabilities, order, -1)
    k = config.num_experts_per_tok
    chosen, shares = order[:, :k], ordered[:, :k]
    margin = 1 - ordered[:, k] / ordered[:, k - 1] if k < config.num_experts else np.ones(len(x))
    if config.norm_topk_prob:
        shares = shares / shares.sum(-1, keepdims=True)
    return chosen, shares, margin


def mixture_of_experts(x: NDArray, weights: Weights, prefix: str, config: ReferenceConfig) -> tuple[NDArray, NDArray]:
    """x: [T, H]. The chosen experts, weighted, plus the shared expert times its sigmoid gate.

    Returns the output and the margins of the routing, [T].
    """
    chosen, shares, margin = route(x, weights[f"{prefix}.gate"], config)
    output = np.zeros_like(x)
    names = ("gate_proj", "up_proj", "down_proj")
    for expert in np.unique(chosen):
        rows, slots = np.nonzero(chosen == expert)
        matrices = (weights[f"{prefix}.experts.{name}"][expert] for name in names)
        output[rows] += shares[rows, slots, None] * gated_mlp(x[rows], *matrices)
    shared = gated_mlp(x, *(weights[f"{prefix}.shared_expert.{name}"] for name in names))
    return output + sigmoid(x @ weights[f"{prefix}.shared_expert_gate"].T) * shared, margin


def head(x: NDArray, weights: Weights, config: ReferenceConfig) -> NDArray:
    """[T, H] -> logits [T, V]."""
    return rms_norm(x, weights["norm"], config.rms_norm_eps) @ weights["lm_head"].T
