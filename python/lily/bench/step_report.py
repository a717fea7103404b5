"""The cost of a decode step or a prompt chunk in kernels, stages and bytes, from a config.json alone."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lily import _core
from lily.checkpoint import LayerType, MatrixFormat, ModelConfig
from lily.checkpoint.config import parse_config
from lily.checkpoint.json_file import read_json_object
from lily.checkpoint.quantization import Quantization, parse_quantization
from lily.checkpoint.read_file import CONFIG_LIMIT
from lily.checks.arguments import as_path, one_of
from lily.checks.quoting import quoted
from lily.checks.whole_numbers import whole_number
from lily.errors import ConfigError
from lily.model.gpu_options import GpuOptions
from lily.model.native import native_config

__all__ = ["StepReport", "step_report"]

DEFAULT_CHUNK = 2048


@dataclass(frozen=True)
class StepReport:
    """Counts of one planned pass of the GPU engine.

    Bytes are the minimum that the kernels must move: each operand once, and only the used part of expert matrices and
    caches. `read` and `written` map "weights", "cache" (keys and values), "recurrent" (states of the linear attention
    layers) and "other" (activations, logits, tables) to bytes.
    """

    phase: str
    context: int
    rows: int
    kernels: int
    stages: int
    barriers: int
    waits: int
    steps_in_flight: int
    read: dict[str, int]
    written: dict[str, int]
    scratch_bytes: int
    scratch_bytes_unshared: int
    kernel_counts: dict[str, int]

    @property
    def bytes_read(self) -> int:
        """Total bytes read."""
        return sum(self.read.values())

    @property
    def bytes_written(self) -> int:
        """Total bytes written."""
        return sum(self.written.values())

    def to_dict(self) -> dict[str, Any]:
        """All counts, for JSON."""
        return {**dataclasses.asdict(self), "bytes_read": self.bytes_read, "bytes_written": self.bytes_written}


def step_report(
    config: str | Path,
    *,
    phase: str,
    context: int,
    rows: int | None = None,
    options: GpuOptions | None = None,
) -> StepReport:
    """Plan one decode step or one prompt chunk without weights and without a GPU.

    Parameters
    ----------
    config : str or Path
        A config.json, or its directory; its quantization block says how the matrices are stored.
    phase : {"decode", "prefill"}
        One token, or one chunk of a prompt.
    context : int
        Tokens before the step.
    rows : int, optional
        Tokens of the chunk, 2048 by default; not allowed for a decode step.
    options : GpuOptions, optional
        Which mechanisms are on; all by default.

    Raises
    ------
    ConfigError
        The config is damaged or not supported, or an argument is out of range.
    """
    path = as_path("config", config, ConfigError)
    if os.path.isdir(path):  # noqa: PTH112 -- Path.is_dir raises for names that are too long
        path /= "config.json"
    raw = read_json_object(path, ConfigError, limit=CONFIG_LIMIT, only_finite=False)
    model = parse_config(raw, str(path))
    formats = _formats(model, parse_quantization(raw, str(path)))
    if options is not None and not isinstance(options, GpuOptions):
        raise ConfigError(f"options must be lily.GpuOptions, not {quoted(options)}")
    native_options = (options or GpuOptions()).to_core()
    one_of("phase", phase, ("decode", "prefill"), ConfigError)
    if phase == "decode" and rows is not None:
        raise ConfigError("rows applies only to a prompt chunk: a decode step has one row")
    count = 1 if phase == "decode" else DEFAULT_CHUNK if rows is None else rows
    context, count = whole_number("context", context, 0), whole_number("rows", count, 1)
    if context + count > model.max_position_embeddings:
        raise ConfigError(
            f"context {context} and {count} more tokens must fit in the model's {model.max_position_embeddings}"
        )
    if phase == "decode":
        native = _core.gpu.report_decode(native_config(model), formats, native_options, context)
    else:
        native = _core.gpu.report_prefill(native_config(model), formats, native_options, context, count)
    total = native.total
    return StepReport(
        phase=phase,
        context=context,
        rows=count,
        kernels=total.kernels,
        stages=total.stages,
        barriers=total.barriers,
        waits=total.waits,
        steps_in_flight=native.steps_in_flight,
        read=dict(zip(_core.gpu.MEMORY_KINDS, total.bytes_read, strict=True)),
        written=dict(zip(_core.gpu.MEMORY_KINDS, total.bytes_written, strict=True)),
        scratch_bytes=total.scratch_bytes,
        scratch_bytes_unshared=total.scratch_bytes_unshared,
        kernel_counts=native.kernels,
    )


def _formats(config: ModelConfig, quantization: Quantization) -> dict[str, tuple[_core.MatrixFormat, int]]:
    """The declared format of every quantized matrix, by its canonical name."""
    formats: dict[str, tuple[_core.MatrixFormat, int]] = {}
    for name, module in _matrices(config):
        plain = quantization.default is None and not quantization.demands(module)
        if plain or quantization.forbids(module):
            continue
        kind, group_size = quantization.format(module)
        if kind is not MatrixFormat.plain:
            formats[name] = (_core.MatrixFormat[kind.name], group_size)
    return formats


def _matrices(config: ModelConfig) -> Iterator[tuple[str, str]]:
    """(canonical name, module in the quantization block) of every matrix."""
    for name in ("embed_tokens", "lm_head"):
        yield name, name
    for layer, kind in enumerate(config.layer_types):
        names = [f"mlp.{name}" for name in ("gate", "shared_expert_gate")]
        names += [f"mlp.shared_expert.{name}_proj" for name in ("gate", "up", "down")]
        if kind is LayerType.linear_attention:
            names += [
                f"linear_attn.{name}" for name in ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj")
            ]
        else:
            names += [f"self_attn.{name}_proj" for name in ("q", "k", "v", "o")]
        for name in names:
            yield f"layers.{layer}.{name}", f"layers.{layer}.{name}"
        for name in ("gate_proj", "up_proj", "down_proj"):
            yield f"layers.{layer}.mlp.experts.{name}", f"layers.{layer}.mlp.switch_mlp.{name}"
