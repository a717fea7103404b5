"""The quantization block of config.json: which format each matrix is declared to have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lily.checkpoint.config_fields import ConfigFields
from lily.checkpoint.json_file import show
from lily.checkpoint.names import is_skipped, split_prefix
from lily.checkpoint.source import MatrixFormat
from lily.errors import ConfigError

_BLOCKS = ("quantization", "quantization_config")
_PARAMETERS = ("group_size", "bits", "mode")
_FORMATS = {4: MatrixFormat.affine4, 8: MatrixFormat.affine8}
_GROUP_SIZES = (32, 64, 128)
_SUPPORTED = "supported is MLX affine quantization with 4 or 8 bits in groups of 32, 64 or 128"


@dataclass(frozen=True)
class Parameters:
    """Parameters of one matrix or of all that have none of their own; None where the block does not say."""

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
        """Whether the config says outright that this module is not quantized."""
        return module in self.overrides and self.overrides[module] is None

    def demands(self, module: str) -> bool:
        """Whether the config has parameters for this module alone."""
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
                f"{show(self.where)}: has no quantization block, but {show(module)} is quantized in the "
                "files; take config.json from the same source as the files"
            )
        default = self.default or Parameters()
        bits = parameters.bits if parameters.bits is not None else default.bits
        group_size = parameters.group_size if parameters.group_size is not None else default.group_size
        mode = parameters.mode if parameters.mode is not None else default.mode
        if mode not in (None, "affine") or bits not in _FORMATS or group_size not in _GROUP_SIZES:
            raise ConfigError(
                f"{show(self.where)}: quantization of {show(module)} with mode {show(mode or 'affine')}, "
                f"bits {show(bits)}, group_size {show(group_size)} is not supported; {_SUPPORTED}"
            )
        return _FORMATS[bits], group_size


def parse_quantization(raw: Mapping[str, Any], where: str) -> Quantization:
    """Read `quantization` and `quantization_config` of a config.json, at its top level or in text_config.

    Raises
    ------
    ConfigError
        A block is malformed or of another kind than MLX's, or two blocks contradict each other.
    """
    found: Quantization | None = None
    text = raw.get("text_config")
    for place in (raw, text if isinstance(text, dict) else {}):
        for name in _BLOCKS:
            block = ConfigFields(place, where).section(name)
            if block is None:
                continue
            parsed = _parse_block(block, where)
            if found is not None and parsed != found:
                raise ConfigError(
                    f"{show(where)}: its quantization blocks ({' and '.join(_BLOCKS)}) contradict each "
                    "other; remove the one that does not describe the files"
                )
            found = parsed
    return found or Quantization(where)


def _parse_block(block: ConfigFields, where: str) -> Quantization:
    method = block.get("quant_method")
    if method not in (None, "mlx", "affine"):
        block.fail("quant_method", f"{show(repr(method))} is unknown quantization; {_SUPPORTED}")
    overrides: dict[str, Parameters | None] = {}
    for key, value in block.values.items():
        if key in _PARAMETERS or key == "quant_method":
            continue
        parts = split_prefix(key)
        if parts is None:
            if not is_skipped(key) and not isinstance(value, (dict, bool)):
                block.fail(key, f"is unknown quantization; {_SUPPORTED}")
            continue
        module = parts[1]
        own = _override(block, key, value)
        if module in overrides and overrides[module] != own:
            block.fail(key, f"contradicts another entry for {show(module)}")
        overrides[module] = own
    return Quantization(where, _parameters(block), overrides)


def _override(block: ConfigFields, key: str, value: Any) -> Parameters | None:
    """Parameters for one module: an object, true for the defaults, false for "not quantized"."""
    if isinstance(value, bool):
        return Parameters() if value else None
    if not isinstance(value, dict):
        block.fail(key, "must be an object, true or false")
    return _parameters(ConfigFields(value, f"{block.where}: {key}"))


def _parameters(fields: ConfigFields) -> Parameters:
    def integer(name: str) -> int | None:
        return None if fields.get(name) is None else fields.integer(name, high=1 << 20)

    mode = None if fields.get("mode") is None else fields.text("mode", default="affine")
    return Parameters(integer("bits"), integer("group_size"), mode)
