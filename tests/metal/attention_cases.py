"""Shapes, random inputs and formulas (float64) that the tests of the attention kernels share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from device_runner import from_bfloat16, pack, to_bfloat16
from lily_args import ARGS

HEAD_DIM, QUERY_HEADS, COALESCED = ARGS.kHeadDimIndex, ARGS.kQueryHeadsIndex, ARGS.kCoalescedIndex
BFLOAT16 = 2.0**-8  # largest relative error of rounding to the 8 significant bits of bfloat16
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Shape:
    """One attention layer; ``position`` is that of the first row, ``capacity`` that of the cache."""

    rows: int
    heads: int
    kv_heads: int
    head_dim: int
    position: int
    rotary_dim: int = 16
    capacity: int = 0
    splits: int = 1

    @property
    def room(self) -> int:
        return self.capacity or self.position + self.rows + 3

    def args(self) -> bytes:
        return pack(self.rows, self.heads, self.kv_heads, self.head_dim, self.rotary_dim, self.room, self.splits, 1e-6)


def random_bfloat16(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> Array:
    return to_bfloat16((rng.standard_normal(shape) * scale).astype(np.float32))


def random_cache(rng: np.random.Generator, shape: Shape, positions: int) -> tuple[Array, Array]:
    """Keys and values; what lies past ``positions`` is NaN, which no result may show."""
    cache = [random_bfloat16(rng, shape.kv_heads, shape.room, shape.head_dim) for _ in range(2)]
    for part in cache:
        part[:, positions:] = 0x7FC1
    return cache[0], cache[1]


def attend(shape: Shape, query: Array, keys: Array, values: Array) -> tuple[Array, Array]:
    """Causal attention of scaled queries, [rows, heads, head_dim], and the same of the magnitudes of values."""
    out = np.zeros((shape.rows, shape.heads, shape.head_dim))
    magnitude = np.zeros_like(out)
    for row in range(shape.rows):
        visible = shape.position + row + 1
        for head in range(shape.heads):
            kv_head = head * shape.kv_heads // shape.heads
            key, value = (from_bfloat16(part[kv_head, :visible]).astype(np.float64) for part in (keys, values))
            scores = key @ from_bfloat16(query[row, head]).astype(np.float64)
            weights = np.exp(scores - scores.max())
            weights /= weights.sum()
            out[row, head], magnitude[row, head] = weights @ value, weights @ np.abs(value)
    return out, magnitude


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x.astype(np.float64)))
