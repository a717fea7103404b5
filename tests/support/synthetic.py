"""Writes synthetic checkpoints: random weights under the real tensor names, in any layout, in bounded memory.

python tests/support/synthetic.py --layers 40 --out DIR    # the whole model in 4 bits, 19.5 GB
python tests/support/synthetic.py --layers 4 --out DIR     # one period of its layers, 2.5 GB
"""

from __future__ import annotations

import argparse
import copy
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synthetic_configs import REAL_CONFIG, layer_types, random_config, text_config, with_layers
from synthetic_values import Values

__all__ = ["REAL_CONFIG", "Options", "random_config", "text_config", "with_layers", "write_checkpoint"]

TYPE_BYTES = {"U32": 4, "F32": 4, "BF16": 2, "F16": 2}
Blocks = Callable[[], Iterator[NDArray[np.generic]]]


@dataclass(frozen=True)
class Options:
    """How a model is stored. Modules are named canonically: "layers.0.mlp.experts.up_proj", "lm_head"."""

    seed: int = 0
    bits: int | None = 4  # None: plain matrices
    group_size: int = 64
    router_bits: int | None = 8  # of gate and shared_expert_gate in a quantized checkpoint
    overrides: Mapping[str, dict[str, int] | bool] = field(default_factory=dict)
    mode: str | None = "affine"  # None: the quantization block does not name it
    prefix: str = "language_model.model."
    override_prefix: str | None = None  # of modules in the quantization block; None: as the tensors
    layout: str = "stacked"  # of the experts: "stacked", "fused" (plain only) or "per_expert"
    converted: bool | None = None  # convolutions [C, K, 1] and norms with their 1; None: if stacked
    scale_dtype: str = "BF16"
    plain_dtype: str = "BF16"
    vector_dtype: str = "BF16"
    a_log_dtype: str = "F32"
    negative_scales: bool = True
    branch_gain: float = 1.0  # of what every block adds to the residual: with less, rounding grows less with depth
    extra: Sequence[str] = ()  # "vision", "mtp"
    shards: int = 1
    shard_bytes: int | None = None  # instead of `shards`: the most that one file holds
    scatter: bool = False  # tensors of one module in different shards
    index: bool = True
    odd_offsets: bool = True  # tensor data begins at odd bytes
    shuffle: bool = True  # data in another order than the header

    @property
    def is_converted(self) -> bool:
        return self.layout == "stacked" if self.converted is None else self.converted

    def module_format(self, module: str) -> tuple[int, int] | None:
        """(bits, group size) of a module, or None for a plain one."""
        router = module.endswith((".mlp.gate", ".shared_expert_gate"))
        bits = self.router_bits if router and self.bits is not None else self.bits
        override = self.overrides.get(module)
        if override is False or (bits is None and not isinstance(override, dict)):
            return None
        own = override if isinstance(override, dict) else {}
        return own.get("bits", bits or 4), own.get("group_size", self.group_size)


@dataclass(frozen=True)
class Tensor:
    name: str
    dtype: str
    shape: tuple[int, ...]
    blocks: Blocks

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * TYPE_BYTES[self.dtype]


def write_checkpoint(
    directory: str | Path, config: dict[str, Any], options: Options | None = None, **changes: Any
) -> Path:
    """Write config.json and the weights; options are given as an object or by name."""
    chosen = Options(**changes) if options is None else options
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    files = _shards(list(tensors(config, chosen)), chosen)
    weight_map: dict[str, str] = {}
    for number, group in enumerate(files, 1):
        name = f"model-{number:05d}-of-{len(files):05d}.safetensors" if len(files) > 1 else "model.safetensors"
        write_file(directory / name, group, chosen)
        weight_map.update((tensor.name, name) for tensor in group)
    if chosen.index:
        total = sum(tensor.nbytes for group in files for tensor in group)
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
        (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    (directory / "config.json").write_text(json.dumps(full_config(config, chosen), indent=2))
    return directory


def full_config(config: dict[str, Any], options: Options) -> dict[str, Any]:
    """The config with its quantization blocks."""
    if options.bits is None:
        return config
    block: dict[str, Any] = {"group_size": options.group_size, "bits": options.bits}
    if options.mode is not None:
        block["mode"] = options.mode
    prefix = options.prefix if options.override_prefix is None else options.override_prefix
    default = (options.bits, options.group_size)
    for module, count, *_ in matrices(config):
        format = options.module_format(module)
        if format == default:
            continue
        own = False if format is None else {"group_size": format[1], "bits": format[0]}
        for stored in _stored_modules(module, count, options):
            block[_raw(stored, prefix)] = own
    return {**copy.deepcopy(config), "quantization": block, "quantization_config": copy.deepcopy(block)}


def matrices(config: dict[str, Any]) -> Iterator[tuple[str, int | None, int, int]]:
    """(module, experts or None, rows, columns) of every matrix of the text model."""
    text = text_config(config)
    hidden, inner, shared = (
        text[key] for key in ("hidden_size", "moe_intermediate_size", "shared_expert_intermediate_size")
    )
    query = text["num_attention_heads"] * text["head_dim"]
    key_value = text["num_key_value_heads"] * text["head_dim"]
    heads, experts = text["linear_num_value_heads"], text["num_experts"]
    key = text["linear_num_key_heads"] * text["linear_key_head_dim"]
    value = heads * text["linear_value_head_dim"]
    yield "embed_tokens", None, text["vocab_size"], hidden
    for layer, kind in enumerate(layer_types(config)):
        name = f"layers.{layer}"
        if kind == "linear_attention":
            rows = {"qkv": 2 * key + value, "z": value, "a": heads, "b": heads}
            for part, count in rows.items():
                yield f"{name}.linear_attn.in_proj_{part}", None, count, hidden
            yield f"{name}.linear_attn.out_proj", None, hidden, value
        else:
            yield f"{name}.self_attn.q_proj", None, 2 * query, hidden
            yield f"{name}.self_attn.k_proj", None, key_value, hidden
            yield f"{name}.self_attn.v_proj", None, key_value, hidden
            yield f"{name}.self_attn.o_proj", None, hidden, query
        yield f"{name}.mlp.gate", None, experts, hidden
        yield f"{name}.mlp.shared_expert_gate", None, 1, hidden
        for module, count, size in (("shared_expert", None, shared), ("experts", experts, inner)):
            yield f"{name}.mlp.{module}.gate_proj", count, size, hidden
            yield f"{name}.mlp.{module}.up_proj", count, size, hidden
            yield f"{name}.mlp.{module}.down_proj", count, hidden, size
    if not text.get("tie_word_embeddings", False):
        yield "lm_head", None, text["vocab_size"], hidden


def vectors(config: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """(name, elements) of every vector of the text model."""
    text = text_config(config)
    heads = text["linear_num_value_heads"]
    channels = 2 * text["linear_num_key_heads"] * text["linear_key_head_dim"] + heads * text["linear_value_head_dim"]
    for layer, kind in enumerate(layer_types(config)):
        name = f"layers.{layer}"
        yield f"{name}.input_layernorm", text["hidden_size"]
        yield f"{name}.post_attention_layernorm", text["hidden_size"]
        if kind == "linear_attention":
            yield f"{name}.linear_attn.conv1d", channels * text["linear_conv_kernel_dim"]
            yield f"{name}.linear_attn.A_log", heads
            yield f"{name}.linear_attn.dt_bias", heads
            yield f"{name}.linear_attn.norm", text["linear_value_head_dim"]
        else:
            yield f"{name}.self_attn.q_norm", text["head_dim"]
            yield f"{name}.self_attn.k_norm", text["head_dim"]
    yield "norm", text["hidden_size"]


def tensors(config: dict[str, Any], options: Options) -> Iterator[Tensor]:
    """Every tensor of the checkpoint under its name in the files."""
    values = Values(options.seed, options.negative_scales, options.branch_gain)
    for module, count, rows, columns in matrices(config):
        yield from _matrix_tensors(module, count, rows, columns, options, values)
    kernel = text_config(config)["linear_conv_kernel_dim"]
    for name, size in vectors(config):
        yield _vector_tensor(name, size, kernel, options, values)
    yield from _extra_tensors(config, options, values)


def _raw(name: str, prefix: str) -> str:
    if name.startswith("lm_head"):
        return f"language_model.{name}" if prefix == "language_model.model." else name
    return prefix + name


def _stored_modules(module: str, count: int | None, options: Options) -> list[str]:
    """Names under which a module's tensors are stored, without prefix."""
    if count is None:
        return [module]
    head, projection = module.rsplit(".", 1)
    if options.layout == "per_expert":
        return [f"{head}.{expert}.{projection}" for expert in range(count)]
    return [f"{head.removesuffix('experts')}switch_mlp.{projection}"]


def _matrix_tensors(
    module: str, count: int | None, rows: int, columns: int, options: Options, values: Values
) -> Iterator[Tensor]:
    format = options.module_format(module)
    if options.layout == "fused" and count is not None:
        assert format is None, "the fused layout is for plain matrices"
        yield from _fused_tensors(module, count, rows, columns, options, values)
        return
    stored = _stored_modules(module, count, options)
    for place, name in enumerate(stored):
        experts = range(1) if count is None else range(count) if len(stored) == 1 else range(place, place + 1)
        lead = (count,) if count is not None and len(stored) == 1 else ()
        raw = _raw(name, options.prefix)
        if format is None:
            blocks = _stream(values.plain, module, experts, rows, columns, options.plain_dtype)
            yield Tensor(f"{raw}.weight", options.plain_dtype, (*lead, rows, columns), blocks)
            continue
        bits, group_size = format
        words, groups = (*lead, rows, columns * bits // 32), (*lead, rows, columns // group_size)
        yield Tensor(f"{raw}.weight", "U32", words, _stream(values.codes, module, experts, rows, columns, bits))
        dtype = options.scale_dtype
        for kind, make in (("scales", values.scales), ("biases", values.biases)):
            blocks = _stream(make, module, experts, rows, columns, bits, group_size, dtype)
            yield Tensor(f"{raw}.{kind}", dtype, groups, blocks)


def _stream(make: Callable[..., Iterator[NDArray[np.generic]]], name: str, experts: range, *rest: Any) -> Blocks:
    def blocks() -> Iterator[NDArray[np.generic]]:
        for expert in experts:
            yield from make(name, expert, *rest)

    return blocks


def _fused_tensors(
    module: str, count: int, rows: int, columns: int, options: Options, values: Values
) -> Iterator[Tensor]:
    """gate_up_proj [experts, 2 x inner, hidden] in the gate's place, down_proj, and nothing for up_proj."""
    head, projection = module.rsplit(".", 1)
    dtype = options.plain_dtype
    raw = _raw(head, options.prefix)
    if projection == "down_proj":
        blocks = _stream(values.plain, module, range(count), rows, columns, dtype)
        yield Tensor(f"{raw}.down_proj", dtype, (count, rows, columns), blocks)
    elif projection == "gate_proj":

        def both() -> Iterator[NDArray[np.generic]]:
            for expert in range(count):
                yield from values.plain(f"{head}.gate_proj", expert, rows, columns, dtype)
                yield from values.plain(f"{head}.up_proj", expert, rows, columns, dtype)

        yield Tensor(f"{raw}.gate_up_proj", dtype, (count, 2 * rows, columns), both)


def _vector_tensor(name: str, size: int, kernel: int, options: Options, values: Values) -> Tensor:
    is_norm = not name.endswith(("A_log", "dt_bias", "conv1d"))
    shifted = is_norm and not name.endswith("linear_attn.norm") and not options.is_converted
    dtype = options.a_log_dtype if name.endswith("A_log") else options.vector_dtype
    shape: tuple[int, ...] = (size,)
    if name.endswith("conv1d"):
        channels = size // kernel
        shape = (channels, kernel, 1) if options.is_converted else (channels, 1, kernel)
    suffix = "" if name.endswith(("A_log", "dt_bias")) else ".weight"

    def blocks() -> Iterator[NDArray[np.generic]]:
        yield values.vector(name, size, dtype, zero_centred=shifted)

    return Tensor(_raw(name, options.prefix) + suffix, dtype, shape, blocks)


def _extra_tensors(config: dict[str, Any], options: Options, values: Values) -> Iterator[Tensor]:
    """A few tensors of parts that the text model does not use."""
    hidden = text_config(config)["hidden_size"]
    vision = "vision_tower" if options.prefix == "language_model.model." else "model.visual"
    shapes: dict[str, tuple[int, int]] = {}
    if "vision" in options.extra:
        shapes[f"{vision}.blocks.0.attn.qkv.weight"] = (3 * hidden, hidden)
        shapes[f"{vision}.patch_embed.proj.weight"] = (hidden, 48)
    if "mtp" in options.extra:
        shapes["mtp.fc.weight"] = (hidden, 2 * hidden)
        shapes["mtp.layers.0.self_attn.k_proj.weight"] = (32, hidden)
        shapes["mtp.layers.0.input_layernorm.weight"] = (1, hidden)
    for name, (rows, columns) in shapes.items():
        yield Tensor(name, "BF16", (rows, columns), _stream(values.plain, name, range(1), rows, columns, "BF16"))


def _shards(everything: list[Tensor], options: Options) -> list[list[Tensor]]:
    if options.scatter:
        order = sorted(everything, key=lambda tensor: zlib.crc32(tensor.name.encode()))
        return [order[first :: options.shards] for first in range(options.shards)]
    total = sum(tensor.nbytes for tensor in everything)
    files: dict[int, list[Tensor]] = {}
    number = size = before = 0
    for tensor in everything:
        if options.shard_bytes is None:
            number = before * options.shards // total
        elif size + tensor.nbytes > options.shard_bytes and size:
            number, size = number + 1, 0
        files.setdefault(number, []).append(tensor)
        size += tensor.nbytes
        before += tensor.nbytes
    return list(files.values())


def write_file(path: Path, group: list[Tensor], options: Options) -> None:
    """Write one safetensors file, block by block."""
    if options.shuffle:
        group = sorted(group, key=lambda tensor: zlib.crc32(f"{options.seed}{tensor.name}".encode()))
    header: dict[str, Any] = {"__metadata__": {"format": "mlx" if options.is_converted else "pt"}}
    end = 0
    for tensor in group:
        begin, end = end, end + tensor.nbytes
        header[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), sort_keys=True).encode()
    text += b" " * (1 - len(text) % 2 if options.odd_offsets else -len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in group:
            written = sum(file.write(np.ascontiguousarray(block).data) for block in tensor.blocks())
            assert written == tensor.nbytes, (tensor.name, written, tensor.nbytes)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="directory to write")
    parser.add_argument("--layers", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bits", type=int, choices=(4, 8, 16), default=4, help="16: plain bfloat16")
    parser.add_argument("--group-size", type=int, choices=(32, 64, 128), default=64)
    parser.add_argument("--layout", choices=("stacked", "fused", "per_expert"), default="stacked")
    parser.add_argument("--branch-gain", type=float, default=1.0, help="of what blocks add; 0.125: calm as trained")
    parser.add_argument("--a-log", choices=("BF16", "F32"), default="BF16", help="type of A_log")
    arguments = parser.parse_args()
    options = Options(
        seed=arguments.seed,
        bits=None if arguments.bits == 16 else arguments.bits,
        group_size=arguments.group_size,
        layout=arguments.layout,
        prefix="language_model.model." if arguments.layout == "stacked" else "model.language_model.",
        a_log_dtype=arguments.a_log,
        branch_gain=arguments.branch_gain,
        shard_bytes=5 << 30,
    )
    config = with_layers(REAL_CONFIG, arguments.layers)
    write_checkpoint(arguments.out, config, options)
    written = list(tensors(config, options))
    print(f"{arguments.out}: {len(written)} tensors, {sum(tensor.nbytes for tensor in written):,} bytes")


if __name__ == "__main__":
    main()
