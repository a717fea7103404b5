"""The header of one safetensors file: names, types, shapes and byte ranges, all checked; no tensor data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from lily.checkpoint.foreign_content import foreign_content
from lily.checkpoint.json_file import parse_json_object
from lily.checkpoint.read_file import open_file, read_exactly
from lily.checkpoint.source import FileIdentity
from lily.checks.quoting import quoted_path, quoted_text
from lily.errors import CheckpointError

_MAX_HEADER_BYTES = 100_000_000  # the format's own limit
_MAX_ELEMENTS = 1 << 40
_MAX_SIZE = 1 << 62  # bytes or elements: sums of two fit in 64 bits
_REMEDY = "the file is damaged or incomplete: download it again"

# Bits of one element. Only skipped tensors may have other types.
_TYPE_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
    "U16": 16, "I16": 16, "F16": 16, "BF16": 16,
    "U32": 32, "I32": 32, "F32": 32,
    "U64": 64, "I64": 64, "F64": 64, "C64": 64,
}  # fmt: skip


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of a file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int  # bytes from the beginning of the file
    size: int  # bytes
    path: Path

    @property
    def label(self) -> str:
        """Name, type, shape and file, for errors."""
        return (
            f"{quoted_path(self.path)}: tensor {quoted_text(self.name)} ({quoted_text(self.dtype)} {list(self.shape)})"
        )


@dataclass(frozen=True)
class SafetensorsFile:
    path: Path
    identity: FileIdentity  # as its descriptor had it when the header was read
    tensors: tuple[TensorEntry, ...]  # in the order of the header


def read_header(path: Path) -> SafetensorsFile:
    """Read and check the header of a safetensors file.

    Raises
    ------
    CheckpointError
        The file cannot be read or is truncated, or its header is damaged or inconsistent with its size.
    """
    with open_file(path, CheckpointError, "download the checkpoint again") as (file, status):
        identity = FileIdentity.of(status)
        start = read_exactly(file, 1024)
        header = _header_bytes(start, identity.size, path)
        data = start[8 : 8 + header]
        data += read_exactly(file, header - len(data))
    if len(data) != header:
        raise CheckpointError(f"{quoted_path(path)}: ends within its header; {_REMEDY}")
    table = parse_json_object(data, str(path), CheckpointError, max_depth=None)
    table.pop("__metadata__", None)
    begin = 8 + header
    tensors = tuple(_entry(name, value, path, begin, identity.size) for name, value in table.items())
    _check_overlap(tensors)
    return SafetensorsFile(path, identity, tensors)


def _header_bytes(start: bytes, file_size: int, path: Path) -> int:
    """Length of the header: the file begins with it, 64-bit little-endian, and with the header's opening brace."""
    length = int.from_bytes(start[:8], "little")
    foreign = foreign_content(start) if length > file_size - 8 or start[8:9] != b"{" else None
    if foreign is not None:
        raise CheckpointError(f"{quoted_path(path)}: {foreign}")
    if len(start) < 9:
        raise CheckpointError(f"{quoted_path(path)}: {file_size} bytes are too few for a safetensors file; {_REMEDY}")
    if length > file_size - 8:
        raise CheckpointError(
            f"{quoted_path(path)}: its header of {length} bytes is longer than the file ({file_size}); {_REMEDY}"
        )
    if length > _MAX_HEADER_BYTES:
        raise CheckpointError(
            f"{quoted_path(path)}: its header of {length} bytes exceeds the limit of {_MAX_HEADER_BYTES}; {_REMEDY}"
        )
    if length < 2 or start[8:9] != b"{":
        raise CheckpointError(f"{quoted_path(path)}: does not begin with a safetensors header; {_REMEDY}")
    return length


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MAX_SIZE


def _entry(name: str, value: Any, path: Path, begin: int, file_size: int) -> TensorEntry:
    """Check one header entry; `begin` is where the file's data begins."""

    def fail(problem: str) -> CheckpointError:
        return CheckpointError(f"{quoted_path(path)}: tensor {quoted_text(name)}: {problem}; {_REMEDY}")

    if not isinstance(value, dict):
        raise fail("its header entry is not an object")
    dtype, shape, offsets = value.get("dtype"), value.get("shape"), value.get("data_offsets")
    if not isinstance(dtype, str):
        raise fail("its dtype is missing or not a string")
    if not isinstance(shape, list) or len(shape) > 16 or not all(map(_is_size, shape)):
        raise fail("its shape is missing or not a list of non-negative integers below 2^62")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_size, offsets)):
        raise fail("its data_offsets are missing or not two non-negative integers below 2^62")
    first, last = offsets
    if first > last:
        raise fail(f"its data_offsets [{quoted_text(first)}, {quoted_text(last)}] are reversed")
    if begin + last > file_size:
        raise fail(f"its data ends at byte {quoted_text(begin + last)}, beyond the end of the file ({file_size} bytes)")
    elements = math.prod(shape)
    if elements > _MAX_ELEMENTS:
        raise fail("its shape has more than 2^40 elements")
    bits = _TYPE_BITS.get(dtype)
    if bits is not None and elements * bits != 8 * (last - first):
        raise fail(f"{quoted_text(dtype)} {shape} takes {elements * bits // 8} bytes but it has {last - first}")
    return TensorEntry(name, dtype, tuple(shape), begin + first, last - first, path)


def _check_overlap(tensors: tuple[TensorEntry, ...]) -> None:
    ordered = sorted((tensor for tensor in tensors if tensor.size), key=lambda tensor: tensor.offset)
    for before, after in pairwise(ordered):
        if before.offset + before.size > after.offset:
            raise CheckpointError(
                f"{quoted_path(before.path)}: tensors {quoted_text(before.name)} and {quoted_text(after.name)} overlap "
                f"(bytes {before.offset}..{before.offset + before.size} and "
                f"{after.offset}..{after.offset + after.size}); {_REMEDY}"
            )
