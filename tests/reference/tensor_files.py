"""Reads safetensors files into NumPy arrays, bfloat16 included."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

NUMPY_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "U32": "<u4", "BF16": "<u2"}
SKIPPED_PREFIXES = (
    "vision_tower.",
    "model.vision_tower.",
    "visual.",
    "model.visual.",
    "mtp.",
    "model.mtp.",
    "language_model.mtp.",
)


def from_bfloat16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """bfloat16 is the upper half of a float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def to_bfloat16(values: NDArray[np.floating]) -> NDArray[np.uint16]:
    """float32 to bfloat16 bits, rounding to nearest even; finite values only."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def read_file(path: Path) -> dict[str, NDArray]:
    """All text tensors of one file: floats as float32 or float64, codes as uint32."""
    data = path.read_bytes()
    (header_size,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + header_size])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__" or name.startswith(SKIPPED_PREFIXES):
            continue
        begin, end = (8 + header_size + offset for offset in entry["data_offsets"])
        array = np.frombuffer(data[begin:end], NUMPY_TYPES[entry["dtype"]]).reshape(entry["shape"])
        if entry["dtype"] == "BF16":
            array = from_bfloat16(array)
        elif entry["dtype"] == "F16":
            array = array.astype(np.float32)
        tensors[name] = array
    return tensors


def read_directory(directory: Path) -> dict[str, NDArray]:
    """The text tensors of every safetensors file in a directory."""
    tensors: dict[str, NDArray] = {}
    for path in sorted(directory.glob("*.safetensors")):
        tensors.update(read_file(path))
    return tensors
