"""MLX's affine format: value = scale * code + bias for each group of values along the input axis."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def unpack_codes(packed: NDArray[np.uint32], bits: int) -> NDArray[np.uint32]:
    """[..., words] -> [..., words * 32 / bits]: codes lie in each word with the lowest bits first."""
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    codes = (packed[..., None] >> shifts) & np.uint32(2**bits - 1)
    return codes.reshape(*packed.shape[:-1], -1)


def dequantize(
    packed: NDArray[np.uint32],
    scales: NDArray[np.floating],
    biases: NDArray[np.floating],
    group_size: int,
    bits: int,
    dtype: type[np.floating] = np.float64,
) -> NDArray:
    """[..., rows, words], [..., rows, groups] twice -> [..., rows, columns]."""
    codes = unpack_codes(packed, bits).astype(dtype)
    grouped = codes.reshape(*scales.shape, group_size)
    values = grouped * scales.astype(dtype)[..., None] + biases.astype(dtype)[..., None]
    return values.reshape(*scales.shape[:-1], -1)


def quantization_of(module: str, quantization: dict, prefixes: tuple[str, ...]) -> tuple[int, int]:
    """(group_size, bits) of a module: its override under any prefix in use, or the common values."""
    for prefix in prefixes:
        override = quantization.get(prefix + module)
        if isinstance(override, dict):
            return (
                override.get("group_size", quantization["group_size"]),
                override.get("bits", quantization["bits"]),
            )
    return quantization["group_size"], quantization["bits"]
