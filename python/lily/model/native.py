"""Passes a resolved checkpoint to the native core."""

from __future__ import annotations

import dataclasses
import os

from lily import _core
from lily.checkpoint import CheckpointSource, MatrixPart, ModelConfig, TensorSlice

__all__ = ["native_config", "native_source"]


def native_config(config: ModelConfig) -> _core.ModelConfig:
    """The core's copy of the dimensions; the fields have the same names on both sides."""
    native = _core.ModelConfig()
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name == "layer_types":
            value = [_core.LayerType[layer_type.name] for layer_type in value]
        setattr(native, field.name, value)
    return native


def native_source(source: CheckpointSource) -> _core.CheckpointSource:
    """The core's copy of the locations of all weights."""
    return _core.CheckpointSource(
        files=[os.fsencode(file) for file in source.files],
        identities=[_core.FileIdentity(**dataclasses.asdict(identity)) for identity in source.identities],
        matrices=[
            _core.MatrixSource(
                name=matrix.name,
                format=_core.MatrixFormat[matrix.format.name],
                element_type=_core.ElementType[matrix.element_type.name],
                group_size=matrix.group_size,
                rows=matrix.rows,
                columns=matrix.columns,
                parts=[_native_part(part) for part in matrix.parts],
            )
            for matrix in source.matrices
        ],
        vectors=[
            _core.VectorSource(
                name=vector.name,
                element_type=_core.ElementType[vector.element_type.name],
                file=vector.file,
                offset=vector.offset,
                size=vector.size,
                add=vector.add,
            )
            for vector in source.vectors
        ],
    )


def _native_part(part: MatrixPart) -> _core.MatrixPart:
    return _core.MatrixPart(
        count=part.count,
        weight=_native_slice(part.weight),
        scales=_native_slice(part.scales),
        biases=_native_slice(part.biases),
    )


def _native_slice(slice_: TensorSlice) -> _core.TensorSlice:
    return _core.TensorSlice(slice_.file, slice_.offset, slice_.stride)
