"""The quantization block of config.json: which format each matrix is declared to have."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lily.checkpoint.config_fields import ConfigFields
from lily.checkpoint.names import is_skipped, split_prefix
from lily.checkpoint.source import MatrixFormat
from lily.checks.quoting import quoted_json, quoted_names, quoted_path, quoted_text
from lily.errors import ConfigError

_BLOCKS = ("quantization", "quantization_config")
_PARAMETERS = ("group_size", "bits", "mode")
_METHODS = (None, "mlx", "affine")
# Keys of other quantizers, whose files have another layout even if the shapes are the same.
_OTHER_LAYOUTS = frozenset(
    {
        "activation_scheme", "bnb_4bit_quant_type", "checkpoint_format", "config_groups", "desc_act", "format",
        "load_in_4bit", "load_in_8bit", "packing", "quant_algo", "quant_type", "quantization_status", "scheme", "sym",
        "weight_block_size", "zero_point",
    }
)  # fmt: skip
_FORMATS = {4: MatrixFormat.affine4, 8: MatrixFormat.affine8}
_GROUP_SIZES = (32, 64, 128)
_SUPPORTED = "supported is MLX affine quantization with 4 or 8 bits in groups of 32, 64 or 128"
_INSTEAD = "take the 4-bit or 8-bit MLX upload of the model, or the vendor's bfloat16 files"

# Endings of tensor names that only other quantizers write.
_OTHER_TENSORS = {
    ".qweight": "AWQ or GPTQ",
    ".qzeros": "AWQ or GPTQ",
    ".g_idx": "GPTQ",
    ".weight_packed": "compressed-tensors",
    ".weight_scale": "fp8 or nvfp4",
    ".weight_scale_inv": "fp8",
    ".absmax": "bitsandbytes",
    "_proj_blocks": "mxfp4",
}
_OTHER_TYPES = {"U8": "mxfp4, mxfp8 or nvfp4", "F8_E8M0": "mxfp4 or mxfp8", "F8_E4M3": "fp8", "F8_E5M2": "fp8"}

logger = logging.getLogger("lily")


@dataclass(frozen=True)
class Parameters:
    """Parameters of one matrix, or defaults of all others; None if the block does not say."""

    bits: int | None = None
    group_size: int | None = None
    mode: str | None = None


@dataclass(frozen=True)
class Quantization:
    """Declared formats; `overrides` is keyed by canonical module name, None there means "not quantized"."""

    where: str
    default: Parameters | None = None
    overrides: Mapping[str, Parameters | None] = field(default_factory=dict)

    def forbids(self, module: str) -> bool:
        """Whether the config says explicitly that this module is not quantized."""
        return module in self.overrides and self.overrides[module] is None

    def demands(self, module: str) -> bool:
        """Whether the config has parameters for this one module."""
        return self.overrides.get(module) is not None

    def format(self, module: str) -> tuple[MatrixFormat, int]:
        """(format, group size) of a module whose tensors are quantized.

        Raises
        ------
        ConfigError
            The config does not say how it is quantized, or in a way that is not supported.
        """
        own = self.overrides.get(module)
        parameters = own or self.default
        if parameters is None:
            raise ConfigError(
                f"{quoted_path(self.where)}: has no quantization block, but {quoted_text(module)} is quantized in the "
                "files; take config.json from the same source as the files"
            )
        default = self.default or Parameters()
        bits = parameters.bits if parameters.bits is not None else default.bits
        group_size = parameters.group_size if parameters.group_size is not None else default.group_size
        mode = parameters.mode if parameters.mode is not None else default.mode
        if mode not in (None, "affine") or bits not in _FORMATS or group_size not in _GROUP_SIZES:
            kind = f"{bits}-bit" if mode in (None, "affine") else mode
            raise ConfigError(
                f"{quoted_path(self.where)}: quantization of {quoted_text(module)} with mode "
                f"{quoted_text(mode or 'affine')}, bits {quoted_text(bits)}, group_size {quoted_text(group_size)} "
                f"is not supported; {_SUPPORTED}. This is {quoted_text(kind)}: {_INSTEAD}"
            )
        return _FORMATS[bits], group_size


def parse_quantization(raw: Mapping[str, Any], where: str, *, plain: bool = False) -> Quantization:
    """Read the quantization block of a config.json, at its top level or in text_config.

    `quantization` takes precedence over `quantization_config`, as in mlx-lm: the latter is a copy, or left over from
    before conversion.

    Parameters
    ----------
    raw
        The parsed config.json.
    where
        Path of the file, for errors.
    plain
        Whether no matrix in the files is quantized: then another quantizer's `quantization_config` is a leftover, and
        ignored with a warning.

    Raises
    ------
    ConfigError
        The block is malformed or of another kind than MLX's.
    """
    text = raw.get("text_config")
    for name in _BLOCKS:
        for place in (raw, text if isinstance(text, dict) else {}):
            block = ConfigFields(place, where).section(name)
            if block is None or not block.values:
                continue
            if plain and name == "quantization_config" and block.get("quant_method") not in _METHODS:
                logger.warning(
                    "%s: %s of quant_method %s is ignored: the files are not quantized",
                    quoted_path(where), name, quoted_json(block.get("quant_method")),
                )  # fmt: skip
                continue
            return _parse_block(block, where)
    return Quantization(where)


def _parse_block(block: ConfigFields, where: str) -> Quantization:
    method = block.get("quant_method")
    if method not in _METHODS:
        shown = quoted_text(method) if isinstance(method, str) else quoted_json(method)
        block.fail("quant_method", f"{shown!r} is unknown quantization; {_SUPPORTED}: {_INSTEAD}")
    overrides: dict[str, Parameters | None] = {}
    unknown = set(_unknown_keys(block))
    for key, value in block.values.items():
        parts = split_prefix(key)
        if parts is None:
            continue
        module = parts[1]
        own = _override(block, key, value, unknown)
        if module in overrides and overrides[module] != own:
            block.fail(key, f"contradicts another entry for {quoted_text(module)}")
        overrides[module] = own
    if unknown:
        logger.warning("%s: unknown keys are ignored: %s", quoted_path(where), quoted_names(sorted(unknown)))
    return Quantization(where, _parameters(block), overrides)


def _unknown_keys(block: ConfigFields) -> Iterator[str]:
    """Keys without a meaning here; refuses those that imply another layout of the files."""
    for key, value in block.values.items():
        if key in _PARAMETERS or key == "quant_method" or split_prefix(key) is not None or is_skipped(key):
            continue
        if key in _OTHER_LAYOUTS and value not in (None, False):
            block.fail(key, f"is unknown quantization; {_SUPPORTED}: {_INSTEAD}")
        if not isinstance(value, (dict, bool)):
            yield key


def _override(block: ConfigFields, key: str, value: Any, unknown: set[str]) -> Parameters | None:
    """Parameters for one module: an object, true for the defaults, false for "not quantized"."""
    if isinstance(value, bool):
        return Parameters() if value else None
    if not isinstance(value, dict):
        block.fail(key, "must be an object, true or false")
    fields = ConfigFields(value, f"{block.where}: {quoted_text(key)}")
    unknown.update(_unknown_keys(fields))
    return _parameters(fields)


def _parameters(fields: ConfigFields) -> Parameters:
    def integer(name: str) -> int | None:
        return None if fields.get(name) is None else fields.integer(name, high=1 << 20)

    mode = None if fields.get("mode") is None else fields.text("mode", default="affine")
    return Parameters(integer("bits"), integer("group_size"), mode)


def is_plain(tensors: Sequence[tuple[str, str]]) -> bool:
    """Whether none of the tensors (name, dtype) is quantized, by any quantizer."""
    return not any(
        name.endswith((".scales", ".biases")) or dtype not in ("BF16", "F16", "F32") for name, dtype in tensors
    ) and not other_quantization(tensors)


def other_quantization(tensors: Iterable[tuple[str, str]]) -> str:
    """Names of tensors (name, dtype) with another kind of quantization, and the remedy; empty if there are none."""
    for name, dtype in tensors:
        kind = next((kind for ending, kind in _OTHER_TENSORS.items() if name.endswith(ending)), None)
        kind = kind or (_OTHER_TYPES.get(dtype) if name.endswith((".weight", ".scales", "_proj")) else None)
        if kind is not None:
            return f"this is {kind} ({quoted_text(name)}), which is not supported: {_INSTEAD}"
    return ""
