"""Reads checkpoints: finds their files and describes every weight, from JSON and headers alone."""

from lily.checkpoint.config import LayerType, ModelConfig
from lily.checkpoint.hub import resolve_source
from lily.checkpoint.memory_plan import Plan, plan
from lily.checkpoint.reader import Checkpoint, read_checkpoint
from lily.checkpoint.source import (
    CheckpointSource,
    ElementType,
    MatrixFormat,
    MatrixPart,
    MatrixSource,
    TensorSlice,
    VectorSource,
)

__all__ = [
    "Checkpoint",
    "CheckpointSource",
    "ElementType",
    "LayerType",
    "MatrixFormat",
    "MatrixPart",
    "MatrixSource",
    "ModelConfig",
    "Plan",
    "TensorSlice",
    "VectorSource",
    "plan",
    "read_checkpoint",
    "resolve_source",
]
