"""The values that a CheckpointSource points at, read straight from its files."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lily.checkpoint import CheckpointSource, MatrixSource, TensorSlice, VectorSource
from synthetic_values import decode

_TYPES = {"bfloat16": ("BF16", np.uint16), "float16": ("F16", np.float16), "float32": ("F32", np.float32)}


def matrix_values(source: CheckpointSource, matrix: MatrixSource) -> NDArray[np.float64]:
    """Dequantized values [count, rows, columns]."""
    stacked = []
    kind = matrix.element_type.value
    for part in matrix.parts:
        for expert in range(part.count):
            if not matrix.format.is_affine:
                stacked.append(_floats(source, part.weight, expert, kind, matrix.rows, matrix.columns))
                continue
            bits = 4 if matrix.format.value == "affine4" else 8
            packed = _bytes(source, part.weight, expert, matrix.weight_bytes)
            codes = packed if bits == 8 else np.stack((packed & 15, packed >> 4), axis=-1).reshape(-1)
            groups = matrix.columns // matrix.group_size
            scales = _floats(source, part.scales, expert, kind, matrix.rows, groups)
            biases = _floats(source, part.biases, expert, kind, matrix.rows, groups)
            grouped = codes.reshape(matrix.rows, groups, matrix.group_size).astype(np.float64)
            values = grouped * scales[..., None] + biases[..., None]
            stacked.append(values.reshape(matrix.rows, matrix.columns))
    return np.stack(stacked)


def vector_values(source: CheckpointSource, vector: VectorSource) -> NDArray[np.float64]:
    """Values [size], with what the source says to add."""
    place = TensorSlice(vector.file, vector.offset, 0)
    return _floats(source, place, 0, vector.element_type.value, 1, vector.size)[0] + vector.add


def _bytes(source: CheckpointSource, place: TensorSlice, expert: int, size: int) -> NDArray[np.uint8]:
    offset = place.offset + expert * place.stride
    return np.fromfile(source.files[place.file], np.uint8, size, offset=offset)


def _floats(
    source: CheckpointSource, place: TensorSlice, expert: int, kind: str, rows: int, columns: int
) -> NDArray[np.float64]:
    dtype, stored = _TYPES[kind]
    data = _bytes(source, place, expert, rows * columns * np.dtype(stored).itemsize).view(stored)
    return decode(data, dtype).astype(np.float64).reshape(rows, columns)
