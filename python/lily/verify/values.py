"""Values in the kernels' formats: bfloat16, argument structs, and rows of quantized matrices."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from lily.verify.function_constants import BITS, GROUP_SIZE

__all__ = ["Arguments", "Constants", "Slots", "affine_rows", "bfloats", "floats", "integers", "round_bfloat", "words"]

Slots = Mapping[int, bytes]
Constants = Mapping[int, int]
Array = npt.NDArray[Any]


def floats(data: bytes) -> npt.NDArray[np.float32]:
    """float32 values."""
    return np.frombuffer(data, np.float32)


def words(data: bytes) -> npt.NDArray[np.uint32]:
    """32-bit words; a remainder of fewer than four bytes is dropped."""
    return np.frombuffer(data, np.uint32, count=len(data) // 4)


def integers(data: bytes) -> npt.NDArray[np.int32]:
    """int32 values."""
    return np.frombuffer(data, np.int32)


def bfloats(data: bytes) -> npt.NDArray[np.float32]:
    """bfloat16 values as float32."""
    bits = np.frombuffer(data, np.uint16).astype(np.uint32) << 16
    return np.asarray(bits.view(np.float32))


def round_bfloat(values: Array) -> npt.NDArray[np.float32]:
    """float32 values rounded to bfloat16, to nearest even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return np.asarray(rounded.view(np.float32))


class Arguments:
    """The argument struct of a launch, by field name.

    Parameters
    ----------
    data : bytes
        The struct.
    fields : str
        Names in order, separated by spaces; ``eps:f`` is a float, ``rows:4`` four words.
    """

    def __init__(self, data: bytes, fields: str) -> None:
        self._values: dict[str, Any] = {}
        offset = 0
        for field in fields.split():
            name, _, kind = field.partition(":")
            if kind == "f":
                self._values[name] = float(struct.unpack_from("<f", data, offset)[0])
            elif re.fullmatch(r"\d+", kind):
                self._values[name] = struct.unpack_from(f"<{kind}I", data, offset)
                offset += 4 * (int(kind) - 1)
            else:
                self._values[name] = int(struct.unpack_from("<I", data, offset)[0])
            offset += 4

    def __getattr__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(name) from None


def affine_rows(
    matrix: tuple[bytes, bytes, bytes],
    constants: Constants,
    columns: int,
    rows: Array,
    *,
    word_offset: int = 0,
    scale_offset: int = 0,
) -> npt.NDArray[np.float32]:
    """Rows of a matrix, [rows, columns]: scale * code + bias in float32, or plain bfloat16 values.

    `matrix` has codes, scales and biases. The offsets, in words of codes and in scales, are those of an expert's
    matrix in its stack.
    """
    codes, scales, biases = matrix
    bits, group = constants[BITS], constants[GROUP_SIZE]
    row_words = columns * bits // 32
    start = word_offset + rows[:, None] * row_words
    packed = words(codes)[start + np.arange(row_words)]  # [rows, row_words]
    if bits == 16:
        halves = np.ascontiguousarray(packed).view(np.uint16).astype(np.uint32) << 16
        return halves.view(np.float32).reshape(len(rows), columns)
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    unpacked = (packed[:, :, None] >> shifts) & np.uint32((1 << bits) - 1)
    values = unpacked.reshape(len(rows), columns).astype(np.float32)
    at = scale_offset + rows[:, None] * (columns // group) + np.arange(columns) // group
    scale = (np.frombuffer(scales, np.uint16)[at].astype(np.uint32) << 16).view(np.float32)
    bias = (np.frombuffer(biases, np.uint16)[at].astype(np.uint32) << 16).view(np.float32)
    return np.asarray(values * scale + bias)
