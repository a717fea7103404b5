"""Where each weight lies in the checkpoint's files: dataclasses that mirror weights/sources.h one to one."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import Enum


class MatrixFormat(str, Enum):
    affine4 = "affine4"  # 8 codes a 32-bit word, lowest nibble first
    affine8 = "affine8"  # 4 codes a 32-bit word, lowest byte first
    plain = "plain"

    @property
    def is_affine(self) -> bool:
        return self is not MatrixFormat.plain


class ElementType(str, Enum):
    bfloat16 = "bfloat16"
    float16 = "float16"
    float32 = "float32"

    @property
    def bytes(self) -> int:
        return 4 if self is ElementType.float32 else 2


@dataclass(frozen=True)
class TensorSlice:
    """Bytes of one tensor: the first matrix begins at `offset` of files[file], the next ones every `stride` bytes."""

    file: int = 0
    offset: int = 0
    stride: int = 0


@dataclass(frozen=True)
class MatrixPart:
    """`count` consecutive matrices (experts) of the same shape; a dense matrix is one part of count 1."""

    count: int
    weight: TensorSlice
    scales: TensorSlice = TensorSlice()  # affine only
    biases: TensorSlice = TensorSlice()  # affine only


@dataclass(frozen=True)
class MatrixSource:
    """A matrix [rows, columns], or one for each expert."""

    name: str
    format: MatrixFormat
    element_type: ElementType  # plain: of the values; affine: of scales and biases
    group_size: int  # affine: columns that share a scale and a bias; plain: 0
    rows: int
    columns: int
    parts: tuple[MatrixPart, ...]  # counts sum to the number of experts, or to 1

    @property
    def count(self) -> int:
        return sum(part.count for part in self.parts)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the codes or values of one matrix."""
        bits = {"affine4": 4, "affine8": 8}.get(self.format.value, 8 * self.element_type.bytes)
        return self.rows * self.columns * bits // 8

    @property
    def scale_bytes(self) -> int:
        """Bytes of the scales of one matrix; its biases have the same size."""
        groups = self.columns // self.group_size if self.group_size else 0
        return self.rows * groups * self.element_type.bytes

    @property
    def total_bytes(self) -> int:
        """Bytes of codes or values, scales and biases of all matrices."""
        return self.count * (self.weight_bytes + 2 * self.scale_bytes)


@dataclass(frozen=True)
class VectorSource:
    """A small tensor that is converted to float32 when loading."""

    name: str
    element_type: ElementType
    file: int
    offset: int
    size: int  # elements
    add: float = 0.0  # added to every element: 1 for the zero-centred norms of the vendor's checkpoints

    @property
    def total_bytes(self) -> int:
        return self.size * self.element_type.bytes


@dataclass(frozen=True)
class FileIdentity:
    """What identifies a file and its content."""

    device: int
    inode: int
    size: int  # bytes
    modified_ns: int  # of the content, since the epoch
    changed_ns: int  # of the content or of attributes; no program can set it back

    @classmethod
    def of(cls, status: os.stat_result) -> FileIdentity:
        device = status.st_dev & (1 << 64) - 1  # negative on some systems; the core's is unsigned
        return cls(device, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@dataclass(frozen=True)
class CheckpointSource:
    """Every weight of the text model, in the files to map."""

    files: tuple[str, ...]  # absolute paths
    identities: tuple[FileIdentity, ...]  # of the files, as the reader saw them
    matrices: tuple[MatrixSource, ...]
    vectors: tuple[VectorSource, ...]

    @property
    def file_sizes(self) -> tuple[int, ...]:
        """Bytes of each file."""
        return tuple(identity.size for identity in self.identities)
