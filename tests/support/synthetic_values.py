"""Random weights whose activations stay of order one, as streams of bytes in bounded memory.

A value depends on the seed and on the weight's canonical name and expert alone: however a checkpoint is laid
out, sharded or typed, it holds the same model up to rounding.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_BLOCK_VALUES = 1 << 22

# Standard deviation of a matrix's outputs for inputs of deviation one; 1 where it is not listed.
_GAIN = {"lm_head": 2.0, "gate": 2.0, "o_proj": 0.5, "out_proj": 0.5, "down_proj": 1.5}
_BRANCH_ENDS = ("o_proj", "out_proj", "down_proj")  # what they give is added to the residual


def encode(values: NDArray[np.float32], dtype: str) -> NDArray[np.generic]:
    """float32 to BF16 (as uint16 bits, rounded to nearest even), F16 or F32."""
    if dtype == "F32":
        return np.ascontiguousarray(values, np.float32)
    if dtype == "F16":
        return values.astype(np.float16)
    assert dtype == "BF16", dtype
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def decode(data: NDArray[np.generic], dtype: str) -> NDArray[np.float32]:
    """The float32 values of BF16 (as uint16 bits), F16 or F32 data."""
    if dtype == "BF16":
        return (data.astype(np.uint32) << 16).view(np.float32)
    return data.astype(np.float32)


@dataclass(frozen=True)
class Values:
    """Streams of the tensors of one model."""

    seed: int
    negative_scales: bool = True
    branch_gain: float = 1.0

    def _generator(self, name: str, expert: int, part: str) -> np.random.Generator:
        return np.random.default_rng([self.seed, zlib.crc32(name.encode()), expert, zlib.crc32(part.encode())])

    def _deviation(self, name: str, columns: int) -> float:
        kind = name.rsplit(".", 1)[-1]
        branch = self.branch_gain if kind in _BRANCH_ENDS else 1.0
        return 1.0 if kind == "embed_tokens" else branch * _GAIN.get(kind, 1.0) / columns**0.5

    def plain(self, name: str, expert: int, rows: int, columns: int, dtype: str) -> Iterator[NDArray[np.generic]]:
        """Values [rows, columns], in blocks of rows."""
        generator = self._generator(name, expert, "values")
        deviation = np.float32(self._deviation(name, columns))
        for count in _blocks(rows, columns):
            yield encode(deviation * generator.standard_normal((count, columns), np.float32), dtype)

    def codes(self, name: str, expert: int, rows: int, columns: int, bits: int) -> Iterator[NDArray[np.generic]]:
        """Packed codes [rows, columns * bits / 32] uint32, uniform over their range."""
        generator = self._generator(name, expert, "codes")
        words = columns * bits // 32
        for count in _blocks(rows, words):
            yield generator.integers(0, 1 << 32, (count, words), np.uint32)

    def scales(
        self, name: str, expert: int, rows: int, columns: int, bits: int, group_size: int, dtype: str
    ) -> Iterator[NDArray[np.generic]]:
        """Scales [rows, columns / group_size] of either sign."""
        generator = self._generator(name, expert, "scales")
        mean = self._deviation(name, columns) / ((4**bits - 1) / 12) ** 0.5
        groups = columns // group_size
        for count in _blocks(rows, groups):
            scales = mean * generator.uniform(0.75, 1.25, (count, groups))
            if self.negative_scales:
                scales *= generator.choice((-1.0, 1.0), (count, groups))
            yield encode(scales.astype(np.float32), dtype)

    def biases(
        self, name: str, expert: int, rows: int, columns: int, bits: int, group_size: int, dtype: str
    ) -> Iterator[NDArray[np.generic]]:
        """Biases [rows, columns / group_size]: a code near the middle stands for exactly zero."""
        generator = self._generator(name, expert, "zeros")
        middle = 1 << (bits - 1)
        for scales in self.scales(name, expert, rows, columns, bits, group_size, dtype):
            zero = generator.integers(middle - 1, middle + 2, scales.shape)
            yield encode(-(zero * decode(scales, dtype)).astype(np.float32), dtype)

    def vector(self, name: str, size: int, dtype: str, *, zero_centred: bool) -> NDArray[np.generic]:
        """A vector; norms are 1 plus a multiple of 1/128, exact in every type with and without the 1."""
        generator = self._generator(name, 0, "vector")
        if name.endswith("A_log"):  # heads forget within a few to a few hundred tokens
            values = generator.uniform(np.log(0.02), np.log(8.0), size)
        elif name.endswith("dt_bias"):
            values = generator.uniform(-2.0, 1.0, size)
        elif name.endswith("conv1d"):
            values = generator.normal(0.0, 0.5, size)
        else:
            values = generator.integers(-26, 27, size) / 128 + (0.0 if zero_centred else 1.0)
        return encode(values.astype(np.float32), dtype)


def _blocks(rows: int, columns: int) -> Iterator[int]:
    step = max(1, _BLOCK_VALUES // max(1, columns))
    for first in range(0, rows, step):
        yield min(step, rows - first)
