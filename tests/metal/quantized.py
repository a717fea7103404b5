"""Random matrices in the formats that kernels read: MLX's affine 4-bit and 8-bit codes, and plain bf16."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runner import from_bfloat16, to_bfloat16
from lily_args import ARGS
from reference.dequantize import dequantize

PLAIN_GROUP_SIZE = 64  # the group size constant that passes set with plain bf16 matrices


@dataclass(frozen=True)
class Matrix:
    """What a kernel binds, and the values that it stands for.

    ``codes`` is uint32 [(experts,) rows, columns * bits / 32], codes with the lowest bits first; ``scales`` and
    ``biases`` are bfloat16 bits, uint16 [(experts,) rows, columns / group_size]. A plain bf16 matrix (``bits`` 16) has
    its values in ``codes``, two a word, and that same array as ``scales`` and ``biases``. ``values`` is float64
    [(experts,) rows, columns].
    """

    bits: int
    group_size: int
    codes: NDArray[np.uint32]
    scales: NDArray[Any]
    biases: NDArray[Any]
    values: NDArray[np.float64]

    def slots(self, first: int) -> dict[int, NDArray[Any]]:
        """The three arrays in the slots ``first``, ``first + 1`` and ``first + 2``."""
        return {first: self.codes, first + 1: self.scales, first + 2: self.biases}

    @property
    def constants(self) -> dict[int, int]:
        """The function constants kBits and kGroupSize."""
        return {ARGS.kBitsIndex: self.bits, ARGS.kGroupSizeIndex: self.group_size}

    @property
    def expert_words(self) -> int:
        """Words of codes from one expert's matrix to the next."""
        return self.codes.shape[-2] * self.codes.shape[-1]

    @property
    def expert_scales(self) -> int:
        """Scales from one expert's to the next."""
        return self.scales.shape[-2] * self.scales.shape[-1]

    @property
    def magnitudes(self) -> NDArray[np.float64]:
        """float64 like ``values``: abs(scale * code) + abs(bias), what rounding errors of products are relative to."""
        if self.bits == 16:
            return np.abs(self.values)
        biases = np.repeat(from_bfloat16(self.biases).astype(np.float64), self.group_size, axis=-1)
        return np.abs(self.values - biases) + np.abs(biases)


def random_bfloat16(rng: np.random.Generator, shape: tuple[int, ...], scale: float = 1.0) -> NDArray[np.uint16]:
    """bfloat16 bits of normally distributed values."""
    return to_bfloat16(rng.normal(0.0, scale, shape).astype(np.float32))


def random_matrix(
    rng: np.random.Generator, rows: int, columns: int, bits: int, group_size: int, experts: int | None = None
) -> Matrix:
    """A matrix (one an expert, stacked) with values of about unit size.

    Codes are uniform. Scales have either sign, as in checkpoints: MLX's encoder anchors a group on its end of larger
    magnitude. ``columns`` is a multiple of ``group_size``; of 2 when ``bits`` is 16.
    """
    shape = (rows,) if experts is None else (experts, rows)
    if bits == 16:
        values = random_bfloat16(rng, (*shape, columns))
        words = values.view(np.uint32)
        return Matrix(16, PLAIN_GROUP_SIZE, words, words, words, from_bfloat16(values).astype(np.float64))
    assert bits in (4, 8) and columns % group_size == 0
    codes = rng.integers(0, 2**32, (*shape, columns * bits // 32), dtype=np.uint32)
    groups = (*shape, columns // group_size)
    steps = rng.uniform(0.5, 1.5, groups) * rng.choice([-1.0, 1.0], groups) * (4.0 / 2**bits)
    anchors = -steps * 2 ** (bits - 1) + rng.normal(0.0, 0.3, groups)
    scales, biases = to_bfloat16(steps.astype(np.float32)), to_bfloat16(anchors.astype(np.float32))
    values = dequantize(codes, from_bfloat16(scales), from_bfloat16(biases), group_size, bits)
    return Matrix(bits, group_size, codes, scales, biases, values)
