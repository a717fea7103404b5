"""A fingerprint of loaded weights: equal for copies of a checkpoint, different for any other weights."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from lily.checkpoint import Checkpoint
from lily.checkpoint.source import CheckpointSource
from lily.errors import CheckpointError

__all__ = ["weights_fingerprint"]

_SAMPLES = 4  # places of each tensor of which the content is read
_SAMPLE_BYTES = 64


def weights_fingerprint(checkpoint: Checkpoint) -> str:
    """Hash of the dimensions, of where every tensor lies, and of samples of every tensor's content.

    The files' names and folder do not matter.
    """
    source = checkpoint.source
    digest = hashlib.sha256()
    config = {name: str(value) for name, value in sorted(asdict(checkpoint.config).items())}
    for part in (config, source.file_sizes, source.matrices, source.vectors):
        digest.update(repr(part).encode())
    try:
        for file, path in enumerate(source.files):
            _sample(Path(path), sorted(set(_ranges(source, file))), digest)
    except OSError as error:
        raise CheckpointError(f"the checkpoint's files cannot be read any more: {error}") from error
    return digest.hexdigest()


def _ranges(source: CheckpointSource, file: int) -> Iterator[tuple[int, int]]:
    """(offset, bytes) of every tensor in one file."""
    for vector in source.vectors:
        if vector.file == file:
            yield vector.offset, vector.total_bytes
    for matrix in source.matrices:
        for part in matrix.parts:
            for piece in (part.weight, part.scales, part.biases):
                if piece.file == file and piece.stride:
                    yield piece.offset, piece.stride * part.count


def _sample(path: Path, ranges: list[tuple[int, int]], digest: hashlib._Hash) -> None:
    with path.open("rb", buffering=0) as stream:
        for offset, size in ranges:
            for sample in range(_SAMPLES):
                stream.seek(offset + max(0, size - _SAMPLE_BYTES) * sample // (_SAMPLES - 1))
                digest.update(stream.read(min(_SAMPLE_BYTES, size)))
