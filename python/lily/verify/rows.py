"""References of the kernels that work row by row: norms, elementwise ones, routing, combining, choosing tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lily.verify.comparison import FLOAT_ROUNDING, Comparison, close, equal, rounded
from lily.verify.formulas import rms_normalized, sigmoid, silu
from lily.verify.values import Arguments, Constants, Slots, bfloats, floats, integers, words

__all__ = [
    "advance_position",
    "argmax_final",
    "argmax_partial",
    "combine_experts",
    "copy_words",
    "fill_zero",
    "rms_norm_rows",
    "route_histogram",
    "route_offsets",
    "route_rows",
    "route_scatter",
    "silu_multiply_rows",
]

Array = npt.NDArray[Any]

GROUPS = "rows experts experts_per_token block_rows max_blocks"
ARGMAX_PARTS = 128


def rms_norm_rows(constants: Constants, before: Slots, after: Slots, data: bytes) -> list[Comparison]:
    args = Arguments(data, "rows size eps:f")
    x = floats(before[0])[: args.rows * args.size].reshape(args.rows, args.size)
    expected = rms_normalized(x, floats(before[1]), args.eps)
    actual = bfloats(after[2])[: expected.size]
    return [rounded("rows", actual, expected.reshape(-1), 16 * FLOAT_ROUNDING * np.abs(expected).reshape(-1))]


def silu_multiply_rows(constants: Constants, before: Slots, after: Slots, data: bytes) -> list[Comparison]:
    count = Arguments(data, "count").count
    gate, up = bfloats(before[0])[:count].astype(np.float64), bfloats(before[1])[:count].astype(np.float64)
    expected = silu(gate) * up
    return [rounded("values", bfloats(after[2])[:count], expected, 16 * FLOAT_ROUNDING * np.abs(expected))]


def fill_zero(constants: Constants, before: Slots, after: Slots, data: bytes) -> list[Comparison]:
    count = Arguments(data, "count").count
    return [equal("words", words(after[0])[:count], np.zeros(count, np.uint32))]


def copy_words(constants: Constants, before: Slots, after: Slots, data: bytes) -> list[Comparison]:
    count = Arguments(data, "count").count
    return [equal("words", words(after[1])[:count], words(before[0])[:count])]


def route_rows(constants: Constants, before: Slots, after: Slots, data: bytes) -> list[Comparison]:
    args = Arguments(data, "rows experts experts_per_token normalize")
    logits = floats(before[0])[: args.rows * args.experts].reshape(args.rows, args.experts).astype(np.float64)
    count = args.experts_per_token
    best = np.argsort(-logits, axis=1, kind="stable")[:, :count]
    chosen = np.sort(best, axis=1)
    probabilities = np.exp(logits - logits.max(1, keepdims=True))
    probabilities /= probabilities.sum(1, keepdims=True)
    weights = np.take_along_axis(probabilities, chosen, 1)
    if args.normalize:
        weights = weights / weights.sum(1, keepdims=True)
    size = args.rows * count
    return [
        equal("experts", integers(after[1])[:size], chosen),
        close("weights", floats(after[2])[:size], weights, 64 * FLOAT_ROUNDING * weights.reshape(-1)),
    ]


def route_histogram(constants: Constants, before: Slots, after: Slots, data: bytes) -> list[Comparison]:
    args = Arguments(data, GROUPS)
    chosen = integers(before[0])[: args.rows * args.experts_per_token]
    return [equal("counts", words(after[1])[: args.experts], np.bincount(chosen, minlength=args.experts))]


def route_offsets(constants: Constants, before: Slots, after: Slots, data: bytes) -> list[Comparison]:
    args = Arguments(data, GROUPS)
    counts = words(before[0])[: args.experts].astype(np.int64)
    blocks = [(expert, first) for expert, count in enumerate(counts) for first in range(0, int(count), args.block_rows)]
    block_map = integers(after[2])[: 2 * len(blocks)]
    return [
        equal("offsets", words(after[1])[: args.experts + 1], np.concatenate([[0], np.cumsum(counts)])),
        equal("blocks", block_map, np.array(blocks).reshape(-1)),
        equal("number of blocks", words(after[3])[:1], np.array([len(blocks)])),
    ]


def route_scatter(constants: Constants, before: Slots, after: Slots, data: bytes) -> list[Comparison]:
    args = Arguments(data, GROUPS)
    chosen = integers(before[0])[: args.rows * args.experts_per_token]
    order = np.argsort(chosen, kind="stable")  # assignment of each place
    place_of = np.empty_like(order)
    place_of[order] = np.arange(len(order))
    return [
        equal("rows", words(after[2])[: len(order)], order // args.experts_per_token),
        equal("places", words(after[3])[: len(order)], place_of),
    ]


def combine_experts(constants: Constants, before: Slots, after: Slots, data: bytes) -> list[Comparison]:
    args = Arguments(data, "rows hidden_size experts_per_token")
    shape = (args.rows, args.experts_per_token)
    y = bfloats(before[0]).reshape(-1, args.hidden_size)
    places = words(before[1])[: args.rows * args.experts_per_token].reshape(shape)
    weights = floats(before[2])[: args.rows * args.experts_per_token].reshape(shape).astype(np.float64)
    shared = bfloats(before[3]).reshape(-1, args.hidden_size)[: args.rows].astype(np.float64)
    gate = sigmoid(floats(before[4])[: args.rows].astype(np.float64))[:, None]
    old = floats(before[5])[: args.rows * args.hidden_size].reshape(args.rows, -1).astype(np.float64)
    terms = weights[:, :, None] * y[places].astype(np.float64)
    expected = old + terms.sum(1) + gate * shared
    magnitude = np.abs(old) + np.abs(terms).sum(1) + np.abs(gate * shared)
    allowed = FLOAT_ROUNDING * (args.experts_per_token + 16) * magnitude
    return [close("hidden", floats(after[5])[: expected.size], expected, allowed.reshape(-1))]


def argmax_partial(constants: Constants, before: Slots, after: Slots, data: bytes) -> list[Comparison]:
    count = Arguments(data, "candidates").candidates
    logits = floats(before[0])[:count]
    size = -(-count // ARGMAX_PARTS)
    best, index = floats(after[1]), integers(after[2])
    parts = [part for part in range(ARGMAX_PARTS) if part * size < count]
    starts = [part * size for part in parts]
    expected = np.array([start + int(np.argmax(logits[start : start + size])) for start in starts])
    return [equal("indices", index[parts], expected), equal("logits", best[parts], logits[expected])]


def argmax_final(constants: Constants, before: Slots, after: Slots, data: bytes) -> list[Comparison]:
    best, index = floats(before[0])[:ARGMAX_PARTS], integers(before[1])[:ARGMAX_PARTS]
    winners = index[best == best.max()]
    return [equal("token", integers(after[2])[:1], np.array([winners[winners >= 0].min()]))]


def advance_position(constants: Constants, before: Slots, after: Slots, data: bytes) -> list[Comparison]:
    rows = Arguments(data, "rows").rows
    return [equal("position", integers(after[1])[:1], integers(before[0])[:1] + rows)]
