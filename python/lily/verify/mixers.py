"""References of the kernels that mix tokens: Gated DeltaNet and attention."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lily.verify.comparison import BFLOAT_ROUNDING, FLOAT_ROUNDING, Comparison, close, rounded
from lily.verify.formulas import rms_normalized, sigmoid, silu, softplus
from lily.verify.values import Arguments, Constants, Slots, bfloats, floats, integers

__all__ = [
    "attention_cache_write",
    "attention_decode",
    "attention_norm_rope",
    "attention_prefill",
    "attention_prepare",
    "attention_reduce",
    "gdn_conv",
    "gdn_norm",
    "gdn_scan",
    "gdn_step",
]

Array = npt.NDArray[Any]

GDN = "tokens key_heads value_heads key_dim value_dim kernel_size eps:f"
ATTENTION = "rows heads kv_heads head_dim rotary_dim capacity splits eps:f"
BLOCK = 512  # positions of a split of attention_decode_blocked


def _read(values: Array, *shape: int) -> Array:
    """The leading values in a shape, in double precision."""
    return values[: int(np.prod(shape))].reshape(shape).astype(np.float64)


# -- Gated DeltaNet ----------------------------------------------------------------------------------------------------


def gdn_conv(constants: Constants, before: Slots, after: Slots, data: bytes, *, bfloat_input: bool) -> list[Comparison]:
    args = Arguments(data, GDN)
    keys, values = args.key_heads * args.key_dim, args.value_heads * args.value_dim
    channels, taps = 2 * keys + values, args.kernel_size
    x = _read((bfloats if bfloat_input else floats)(before[0]), args.tokens, channels)
    past = _read(floats(before[6]), taps - 1, channels)
    kernel = _read(floats(before[3]), channels, taps)
    padded = np.concatenate([past, x])
    mixed = silu(np.stack([(padded[t : t + taps] * kernel.T).sum(0) for t in range(args.tokens)]))
    heads = mixed[:, : 2 * keys].reshape(args.tokens, 2 * args.key_heads, args.key_dim)
    heads = heads / np.sqrt((heads * heads).sum(-1, keepdims=True) + 1e-6)
    query, key = heads[:, : args.key_heads] * args.key_dim**-0.5, heads[:, args.key_heads :]
    gate = _read(floats(before[1]), args.tokens, args.value_heads) + floats(before[5])[: args.value_heads]
    decay = np.exp(-floats(before[4])[: args.value_heads].astype(np.float64) * softplus(gate))
    beta = sigmoid(_read(floats(before[2]), args.tokens, args.value_heads))
    magnitude = np.stack([(np.abs(padded[t : t + taps] * kernel.T)).sum(0) for t in range(args.tokens)])
    error = 16 * FLOAT_ROUNDING * magnitude
    # A head's values share its norm; its errors scale with its largest value.
    margin = 64 * FLOAT_ROUNDING
    return [
        rounded("query", bfloats(after[8])[: query.size], query.reshape(-1), margin * np.abs(query).max()),
        rounded("key", bfloats(after[9])[: key.size], key.reshape(-1), margin * np.abs(key).max()),
        rounded("value", bfloats(after[10])[: args.tokens * values], mixed[:, 2 * keys :].reshape(-1),
                error[:, 2 * keys :].reshape(-1)),
        close("decay", floats(after[11])[: decay.size], decay, 64 * FLOAT_ROUNDING),
        close("beta", floats(after[12])[: beta.size], beta, 16 * FLOAT_ROUNDING),
        close("convolution state", floats(after[7])[: (taps - 1) * channels], padded[args.tokens :], 0.0),
    ]  # fmt: skip


def _scan(args: Arguments, before: Slots, tokens: int) -> tuple[Array, Array, Array]:
    """Outputs, the last state, and a bound of the magnitudes summed in it."""
    repeat = np.arange(args.value_heads) * args.key_heads // args.value_heads
    query, key = (_read(bfloats(before[s]), tokens, args.key_heads, args.key_dim)[:, repeat] for s in (0, 1))
    value = _read(bfloats(before[2]), tokens, args.value_heads, args.value_dim)
    decay, beta = (_read(floats(before[s]), tokens, args.value_heads) for s in (3, 4))
    state = _read(floats(before[5]), args.value_heads, args.value_dim, args.key_dim)
    out = np.empty((tokens, args.value_heads, args.value_dim))
    largest = np.abs(state).max()
    for t in range(tokens):
        state = decay[t][:, None, None] * state
        change = beta[t][:, None] * (value[t] - np.einsum("hvk,hk->hv", state, key[t]))
        state = state + change[:, :, None] * key[t][:, None, :]
        out[t] = np.einsum("hvk,hk->hv", state, query[t])
        largest = max(largest, np.abs(state).max(), np.abs(value[t]).max())
    return out, state, np.asarray(largest)


def _scan_error(args: Arguments, tokens: int, largest: Array) -> float:
    """Each token adds a few roundings of sums over key_dim to the state; decay keeps them from growing."""
    return float(FLOAT_ROUNDING * (32 + 4 * np.sqrt(args.key_dim)) * np.sqrt(tokens + 1) * max(float(largest), 1e-3))


def gdn_scan(constants: Constants, before: Slots, after: Slots, data: bytes) -> list[Comparison]:
    args = Arguments(data, GDN)
    out, state, largest = _scan(args, before, args.tokens)
    error = _scan_error(args, args.tokens, largest)
    return [
        close("output", floats(after[7])[: out.size], out, error),
        close("state", floats(after[6])[: state.size], state, error),
    ]


def gdn_norm(constants: Constants, before: Slots, after: Slots, data: bytes, *, bfloat_gate: bool) -> list[Comparison]:
    args = Arguments(data, GDN)
    shape = (args.tokens, args.value_heads, args.value_dim)
    gate = silu(_read((bfloats if bfloat_gate else floats)(before[1]), *shape))
    expected = rms_normalized(_read(floats(before[0]), *shape), floats(before[2])[: args.value_dim], args.eps) * gate
    return [rounded("rows", bfloats(after[3])[: expected.size], expected.reshape(-1),
                    32 * FLOAT_ROUNDING * np.abs(expected).reshape(-1))]  # fmt: skip


def gdn_step(constants: Constants, before: Slots, after: Slots, data: bytes) -> list[Comparison]:
    args = Arguments(data, GDN)
    out, state, largest = _scan(args, before, 1)
    error = _scan_error(args, 1, largest)
    gate = silu(_read(floats(before[7]), args.value_heads, args.value_dim))
    weight = floats(before[8])[: args.value_dim].astype(np.float64)
    expected = rms_normalized(out[0], weight, args.eps) * gate
    # The norm divides the output and its error alike.
    scale = np.sqrt(np.mean(out[0] ** 2, -1, keepdims=True) + args.eps)
    margin = 2 * error / scale * (np.abs(weight * gate) + np.abs(expected)) + 32 * FLOAT_ROUNDING * np.abs(expected)
    return [
        close("state", floats(after[6])[: state.size], state, error),
        rounded("rows", bfloats(after[9])[: expected.size], expected.reshape(-1), margin.reshape(-1)),
    ]


# -- attention ---------------------------------------------------------------------------------------------------------


def _turned(x: Array, frequencies: Array, first: int) -> Array:
    """RoPE on the leading dimensions of [rows, heads, head_dim]: i turns with i + half."""
    half = len(frequencies)
    angles = (first + np.arange(len(x)))[:, None, None] * frequencies.astype(np.float64)
    # The kernel multiplies in float32: the angle of a far position has lost digits on both sides alike.
    angles = angles.astype(np.float32).astype(np.float64)
    cosine, sine = np.cos(angles), np.sin(angles)
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return np.concatenate([a * cosine - b * sine, b * cosine + a * sine, rest], -1)


def _query_and_key(args: Arguments, before: Slots, read: Any) -> tuple[Array, Array, float]:
    """Prepared queries and keys, and the possible change of a normalised value by an angle's float32 rounding."""
    first = int(integers(before[6])[0])
    frequencies = floats(before[5])[: args.rotary_dim // 2]
    projected = _read(read(before[0]), args.rows, args.heads, 2, args.head_dim)
    query = rms_normalized(projected[:, :, 0], floats(before[3])[: args.head_dim], args.eps)
    key = rms_normalized(
        _read(read(before[1]), args.rows, args.kv_heads, args.head_dim), floats(before[4])[: args.head_dim], args.eps
    )
    query, key = _turned(query, frequencies, first), _turned(key, frequencies, first)
    error = FLOAT_ROUNDING * (32 + first + args.rows) * max(float(np.abs(query).max()), float(np.abs(key).max()))
    return query * args.head_dim**-0.5, key, error


def _cache_rows(data: bytes, args: Arguments, first: int) -> Array:
    """The rows just written: [rows, kv_heads, head_dim]."""
    cache = bfloats(data).reshape(args.kv_heads, -1, args.head_dim)
    return np.asarray(cache[:, first : first + args.rows].transpose(1, 0, 2))


def attention_prepare(
    constants: Constants, before: Slots, after: Slots, data: bytes, *, bfloat_input: bool
) -> list[Comparison]:
    args = Arguments(data, ATTENTION)
    read = bfloats if bfloat_input else floats
    query, key, error = _query_and_key(args, before, read)
    value = _read(read(before[2]), args.rows, args.kv_heads, args.head_dim)
    first = int(integers(before[6])[0])
    return [
        rounded("query", bfloats(after[7])[: query.size], query.reshape(-1), error * args.head_dim**-0.5),
        rounded("keys", _cache_rows(after[8], args, first).reshape(-1), key.reshape(-1), error),
        rounded("values", _cache_rows(after[9], args, first).reshape(-1), value.reshape(-1)),
    ]


def attention_norm_rope(
    constants: Constants, before: Slots, after: Slots, data: bytes, *, bfloat_input: bool
) -> list[Comparison]:
    args = Arguments(data, ATTENTION)
    query, key, error = _query_and_key(args, before, bfloats if bfloat_input else floats)
    return [
        rounded("query", bfloats(after[7])[: query.size], query.reshape(-1), error * args.head_dim**-0.5),
        rounded("key", bfloats(after[8])[: key.size], key.reshape(-1), error),
    ]


def attention_cache_write(
    constants: Constants, before: Slots, after: Slots, data: bytes, *, bfloat_input: bool
) -> list[Comparison]:
    args = Arguments(data, ATTENTION)
    shape = (args.rows, args.kv_heads, args.head_dim)
    first = int(integers(before[2])[0])
    key, value = _read(bfloats(before[0]), *shape), _read((bfloats if bfloat_input else floats)(before[1]), *shape)
    return [
        rounded("keys", _cache_rows(after[3], args, first).reshape(-1), key.reshape(-1)),
        rounded("values", _cache_rows(after[4], args, first).reshape(-1), value.reshape(-1)),
    ]


def _scores(args: Arguments, query: Array, keys: bytes, values: bytes, head: int, count: int) -> tuple[Array, Array]:
    """Scores of a head's rows with `count` positions, and the values at those."""
    kv = head // (args.heads // args.kv_heads)
    key, value = (bfloats(data).reshape(args.kv_heads, -1, args.head_dim)[kv, :count] for data in (keys, values))
    return query[:, head] @ key.T.astype(np.float64), value.astype(np.float64)


def attention_prefill(constants: Constants, before: Slots, after: Slots, data: bytes) -> list[Comparison]:
    args = Arguments(data, ATTENTION)
    first = int(integers(before[4])[0])
    query = _read(bfloats(before[0]), args.rows, args.heads, args.head_dim)
    gate = sigmoid(_read(bfloats(before[3]), args.rows, args.heads, 2, args.head_dim)[:, :, 1])
    actual = _read(bfloats(after[5]), args.rows, args.heads, args.head_dim)
    later = np.arange(first + args.rows)[None, :] > first + np.arange(args.rows)[:, None]
    comparisons = []
    for head in range(args.heads):
        scores, value = _scores(args, query, before[1], before[2], head, first + args.rows)
        scores[later] = -np.inf
        weights = np.exp(scores - scores.max(1, keepdims=True))
        total = weights.sum(1, keepdims=True)
        expected = weights @ value / total * gate[:, head]
        # Weights are rounded to bfloat16, independently of each other; scores err like sums of head_dim products.
        spread = np.sqrt((weights * weights) @ (value * value)) / total
        score_error = FLOAT_ROUNDING * (16 + np.sqrt(args.head_dim)) * (1 + np.abs(scores[~later]).max())
        error = (2 * BFLOAT_ROUNDING * spread + score_error * (weights @ np.abs(value)) / total) * gate[:, head]
        comparisons.append(
            rounded(f"head {head}", actual[:, head].reshape(-1), expected.reshape(-1), error.reshape(-1))
        )
    return comparisons


def attention_decode(
    constants: Constants, before: Slots, after: Slots, data: bytes, *, blocked: bool
) -> list[Comparison]:
    args = Arguments(data, ATTENTION)
    count = int(integers(before[3])[0]) + 1
    query = _read(bfloats(before[0]), 1, args.heads, args.head_dim)
    partial = _read(floats(after[4]), args.splits, args.heads, args.head_dim + 2)
    size = BLOCK if blocked else -(-count // args.splits)
    comparisons = []
    for head in range(args.heads):
        scores, value = _scores(args, query, before[1], before[2], head, count)
        for split in range(args.splits):
            mine = scores[0, split * size : (split + 1) * size]
            if len(mine) == 0:
                comparisons.append(close("empty split", partial[split, head, 1:], np.zeros(args.head_dim + 1), 0.0))
                continue
            # The kernel's maximum may differ, but weights relative to it must be right.
            weights = np.exp(mine - partial[split, head, 0])
            error = FLOAT_ROUNDING * (32 + np.sqrt(args.head_dim) + np.sqrt(len(mine))) * (1 + np.abs(mine).max())
            near = value[split * size : (split + 1) * size]
            expected = np.concatenate([[weights.sum()], weights @ near])
            allowed = error * np.concatenate([[weights.sum()], weights @ np.abs(near)])
            comparisons.append(close(f"head {head}, split {split}", partial[split, head, 1:], expected, allowed))
            comparisons.append(close("maximum", partial[split, head, :1], np.array([mine.max()]), error))
    return comparisons


def attention_reduce(constants: Constants, before: Slots, after: Slots, data: bytes) -> list[Comparison]:
    args = Arguments(data, ATTENTION)
    partial = _read(floats(before[0]), args.splits, args.heads, args.head_dim + 2)
    gate = sigmoid(_read(floats(before[1]), args.heads, 2, args.head_dim)[:, 1])
    scale = np.exp(partial[:, :, :1] - partial[:, :, :1].max(0))
    total = (scale * partial[:, :, 1:2]).sum(0)
    expected = (scale * partial[:, :, 2:]).sum(0) / total * gate
    error = FLOAT_ROUNDING * (32 + args.splits) * np.abs(scale * partial[:, :, 2:]).sum(0) / total * gate
    return [rounded("heads", bfloats(after[2])[: expected.size], expected.reshape(-1), error.reshape(-1))]
