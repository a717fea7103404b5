"""Resolves every weight of the text model: finds its tensors, checks them, and records where they are."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from lily.checkpoint.config import LayerType, ModelConfig
from lily.checkpoint.names import summarise
from lily.checkpoint.quantization import Quantization, other_quantization
from lily.checkpoint.safetensors_header import TensorEntry
from lily.checkpoint.source import (
    CheckpointSource,
    ElementType,
    MatrixFormat,
    MatrixPart,
    MatrixSource,
    TensorSlice,
    VectorSource,
)
from lily.checkpoint.tensors import TensorTable
from lily.checks.quoting import quoted_path, quoted_text
from lily.errors import CheckpointError

_ELEMENT_TYPES = {"BF16": ElementType.bfloat16, "F16": ElementType.float16, "F32": ElementType.float32}
_FLOATS = tuple(_ELEMENT_TYPES)
_MAX_MISSING = 200_000
_EXPERTS = re.compile(r"(layers\.\d+\.mlp)\.(switch_mlp|experts\.\d+|experts)\.")


@dataclass(frozen=True)
class _Block:
    """The tensors of one module: `count` contiguous matrices [rows, columns]."""

    format: MatrixFormat
    element_type: ElementType
    group_size: int
    count: int
    tensors: tuple[TensorEntry, ...]  # weight, or weight, scales, biases

    def part(self, files: dict[Path, int], piece: int, pieces: int) -> MatrixPart:
        """One of `pieces` equal pieces of each matrix's rows (piece 0 of 1: all rows)."""
        slices = []
        for tensor in self.tensors:
            stride = tensor.size // self.count
            file = files.setdefault(tensor.path, len(files))
            slices.append(TensorSlice(file, tensor.offset + stride * piece // pieces, stride))
        return MatrixPart(self.count, *slices)


class WeightResolver:
    """Builds the CheckpointSource of one checkpoint; used once."""

    def __init__(self, table: TensorTable, config: ModelConfig, quantization: Quantization, tied: bool) -> None:
        self._table = table
        self._config = config
        self._quantization = quantization
        self._tied = tied
        self._files: dict[Path, int] = {}
        self._used: set[str] = set()
        self._missing: list[str] = []
        self._matrices: list[MatrixSource] = []
        self._vectors: list[VectorSource] = []
        self._layouts: dict[str, set[str]] = {}
        for name in table.text:
            match = _EXPERTS.match(name)
            if match is not None:
                layout = "expert" if match[2].startswith("experts.") else match[2]
                self._layouts.setdefault(match[1], set()).add(layout)

    def resolve(self) -> tuple[CheckpointSource, list[TensorEntry]]:
        """(source, tensors of the text model that are not needed).

        Raises
        ------
        CheckpointError
            A tensor is missing, unexpected, or has another type or shape than the config implies.
        """
        config = self._config
        add = 1.0 if self._zero_centred_norms() else 0.0
        self._dense("embed_tokens", config.vocab_size, config.hidden_size)
        for layer, kind in enumerate(config.layer_types):
            self._layer(f"layers.{layer}", kind, add)
        self._vector("norm", "norm.weight", config.hidden_size, add)
        self._head()
        self._refuse_missing()
        unneeded = self._refuse_unexpected()
        identities = self._table.identities
        source = CheckpointSource(
            tuple(str(path) for path in self._files),
            tuple(identities[path] for path in self._files),
            tuple(self._matrices),
            tuple(self._vectors),
        )
        return source, unneeded

    # Layers.

    def _head(self) -> None:
        if not self._tied:
            self._dense("lm_head", self._config.vocab_size, self._config.hidden_size)
        elif self._matrices and self._matrices[0].name == "embed_tokens":
            shared = self._matrices[0]
            self._matrices.append(replace(shared, name="lm_head"))

    def _layer(self, name: str, kind: LayerType, add: float) -> None:
        hidden = self._config.hidden_size
        self._vector(f"{name}.input_layernorm", f"{name}.input_layernorm.weight", hidden, add)
        if kind is LayerType.linear_attention:
            self._linear_attention(f"{name}.linear_attn")
        else:
            self._full_attention(f"{name}.self_attn", add)
        self._vector(f"{name}.post_attention_layernorm", f"{name}.post_attention_layernorm.weight", hidden, add)
        self._feed_forward(f"{name}.mlp")

    def _linear_attention(self, name: str) -> None:
        config = self._config
        hidden, heads = config.hidden_size, config.linear_num_value_heads
        self._dense(f"{name}.in_proj_qkv", config.linear_conv_dim, hidden)
        self._dense(f"{name}.in_proj_z", config.linear_value_dim, hidden)
        self._dense(f"{name}.in_proj_a", heads, hidden)
        self._dense(f"{name}.in_proj_b", heads, hidden)
        self._dense(f"{name}.out_proj", hidden, config.linear_value_dim)
        channels, kernel = config.linear_conv_dim, config.linear_conv_kernel_dim
        shapes = ((channels, kernel, 1), (channels, 1, kernel))
        self._vector(f"{name}.conv1d", f"{name}.conv1d.weight", channels * kernel, 0.0, shapes)
        self._vector(f"{name}.A_log", f"{name}.A_log", heads, 0.0)
        self._vector(f"{name}.dt_bias", f"{name}.dt_bias", heads, 0.0)
        self._vector(f"{name}.norm", f"{name}.norm.weight", config.linear_value_head_dim, 0.0)

    def _full_attention(self, name: str, add: float) -> None:
        config = self._config
        self._dense(f"{name}.q_proj", 2 * config.query_dim, config.hidden_size)  # per head: query, then gate
        self._dense(f"{name}.k_proj", config.key_value_dim, config.hidden_size)
        self._dense(f"{name}.v_proj", config.key_value_dim, config.hidden_size)
        self._dense(f"{name}.o_proj", config.hidden_size, config.query_dim)
        self._vector(f"{name}.q_norm", f"{name}.q_norm.weight", config.head_dim, add)
        self._vector(f"{name}.k_norm", f"{name}.k_norm.weight", config.head_dim, add)

    def _feed_forward(self, name: str) -> None:
        config = self._config
        hidden, shared = config.hidden_size, config.shared_expert_intermediate_size
        self._dense(f"{name}.gate", config.num_experts, hidden)
        self._dense(f"{name}.shared_expert_gate", 1, hidden)
        self._dense(f"{name}.shared_expert.gate_proj", shared, hidden)
        self._dense(f"{name}.shared_expert.up_proj", shared, hidden)
        self._dense(f"{name}.shared_expert.down_proj", hidden, shared)
        layouts = self._layouts.get(name, {"switch_mlp"})
        if len(layouts) > 1:
            raise CheckpointError(
                f"{quoted_path(self._any_path())}: the experts of {quoted_text(name)} are stored in several layouts; "
                "remove the files that do not belong to the checkpoint"
            )
        if layouts == {"experts"}:
            self._fused_experts(name, f"{name}.experts")
            return
        inner = config.moe_intermediate_size
        stacked = f"{name}.switch_mlp"
        if any(f"{stacked}.gate_up_proj{ending}" in self._table.text for ending in (".weight", "")):
            self._fused_experts(name, stacked)
            return
        for projection, rows, columns in (
            ("gate_proj", inner, hidden), ("up_proj", inner, hidden), ("down_proj", hidden, inner)
        ):  # fmt: skip
            canonical = f"{name}.experts.{projection}"
            if layouts == {"expert"}:
                modules = [f"{name}.experts.{expert}.{projection}" for expert in range(config.num_experts)]
                self._separate_experts(canonical, modules, rows, columns)
            else:
                block = self._block(f"{name}.switch_mlp.{projection}", rows, columns, config.num_experts)
                if block is not None:
                    self._add_matrix(canonical, rows, columns, [block])

    def _fused_experts(self, name: str, stored: str) -> None:
        """Gate and up in one tensor [experts, 2 x inner, hidden], gate rows first, as the vendor stores them."""
        config = self._config
        hidden, inner, count = config.hidden_size, config.moe_intermediate_size, config.num_experts
        both = self._block(f"{stored}.gate_up_proj", 2 * inner, hidden, count, bare=True)
        if both is not None:
            self._add_matrix(f"{name}.experts.gate_proj", inner, hidden, [both], 0, 2)
            self._add_matrix(f"{name}.experts.up_proj", inner, hidden, [both], 1, 2)
        down = self._block(f"{stored}.down_proj", hidden, inner, count, bare=True)
        if down is not None:
            self._add_matrix(f"{name}.experts.down_proj", hidden, inner, [down])

    def _separate_experts(self, canonical: str, modules: list[str], rows: int, columns: int) -> None:
        found = [self._block(module, rows, columns) for module in modules]
        blocks = [block for block in found if block is not None]
        if len(blocks) < len(modules):
            return
        first = blocks[0]
        for module, block in zip(modules, blocks, strict=True):
            if (block.format, block.element_type, block.group_size) != (
                first.format, first.element_type, first.group_size
            ):  # fmt: skip
                raise CheckpointError(
                    f"{block.tensors[0].label}: {quoted_text(module)} has another type or quantization than "
                    f"{quoted_text(modules[0])}; all experts of a layer must have the same"
                )
        self._add_matrix(canonical, rows, columns, blocks)

    # Tensors.

    def _dense(self, name: str, rows: int, columns: int) -> None:
        block = self._block(name, rows, columns)
        if block is not None:
            self._add_matrix(name, rows, columns, [block])

    def _add_matrix(
        self, name: str, rows: int, columns: int, blocks: list[_Block], piece: int = 0, pieces: int = 1
    ) -> None:
        kind = blocks[0]
        parts = tuple(block.part(self._files, piece, pieces) for block in blocks)
        self._matrices.append(MatrixSource(name, kind.format, kind.element_type, kind.group_size, rows, columns, parts))

    def _block(
        self, module: str, rows: int, columns: int, count: int | None = None, *, bare: bool = False
    ) -> _Block | None:
        """The checked tensors of a module, or None if one is missing; `count`: matrices in one tensor.

        `bare`: the weight may have the module's own name, as the vendor's fused experts do.
        """
        key = module if bare and f"{module}.weight" not in self._table.text else f"{module}.weight"
        weight = self._take(key)
        if weight is None:
            return None
        lead = () if count is None else (count,)
        quantization = self._quantization
        scaled = f"{module}.scales" in self._table.text
        if scaled and quantization.forbids(module):
            self._mismatch(weight, "has scales, but config.json says that it is not quantized")
        if not (scaled or weight.dtype == "U32" or quantization.demands(module)):
            self._check(weight, _FLOATS, (*lead, rows, columns))
            element_type = _ELEMENT_TYPES[weight.dtype]
            return _Block(MatrixFormat.plain, element_type, 0, count or 1, (weight,))
        if quantization.forbids(module):
            self._check(weight, _FLOATS, (*lead, rows, columns))
        format, group_size = quantization.format(module)
        scales, biases = self._take(f"{module}.scales"), self._take(f"{module}.biases")
        if scales is None or biases is None:
            return None
        if columns % group_size:
            self._mismatch(weight, f"has {columns} columns, not a multiple of its group size {group_size}")
        bits = 4 if format is MatrixFormat.affine4 else 8
        self._check(weight, ("U32",), (*lead, rows, columns * bits // 32), note=f" ({bits} bits)")
        for tensor in (scales, biases):
            self._check(tensor, _FLOATS, (*lead, rows, columns // group_size), note=f" (groups of {group_size})")
        if scales.dtype != biases.dtype:
            self._mismatch(biases, f"has another type than its scales ({quoted_text(scales.dtype)})")
        return _Block(format, _ELEMENT_TYPES[scales.dtype], group_size, count or 1, (weight, scales, biases))

    def _vector(
        self, name: str, key: str, size: int, add: float, shapes: tuple[tuple[int, ...], ...] | None = None
    ) -> None:
        tensor = self._take(key)
        if tensor is None:
            return
        self._check(tensor, _FLOATS, *(shapes or ((size,),)))
        file = self._files.setdefault(tensor.path, len(self._files))
        self._vectors.append(VectorSource(name, _ELEMENT_TYPES[tensor.dtype], file, tensor.offset, size, add))

    def _take(self, key: str) -> TensorEntry | None:
        entry = self._table.text.get(key)
        if entry is None:
            self._missing.append(key)
            if len(self._missing) > _MAX_MISSING:
                self._refuse_missing()
            return None
        self._used.add(key)
        return entry

    def _check(self, tensor: TensorEntry, types: tuple[str, ...], *shapes: tuple[int, ...], note: str = "") -> None:
        """Check type and shape; `note` says what implies them besides the dimensions."""
        if tensor.dtype in types and tensor.shape in shapes:
            return
        expected = " or ".join(str(list(shape)) for shape in shapes)
        self._mismatch(tensor, f"config.json{note} implies {' or '.join(types)} {expected}")

    def _mismatch(self, tensor: TensorEntry, problem: str) -> NoReturn:
        other = self._other_quantization() or "take config.json and all files from the same supported source"
        raise CheckpointError(f"{tensor.label}: {problem}; {other}")

    def _other_quantization(self) -> str:
        entries = (*self._table.text.values(), *self._table.unknown)
        return other_quantization((entry.name, entry.dtype) for entry in entries)

    # The whole.

    def _zero_centred_norms(self) -> bool:
        """Whether norms are stored without their 1, as in vendor files, which have convolutions [channels, 1, kernel].

        A model without a convolution is recognised by its experts' layout: only converted files have switch_mlp.
        """
        kernel = self._config.linear_conv_kernel_dim
        found: dict[bool, TensorEntry] = {}
        for layer, kind in enumerate(self._config.layer_types):
            tensor = self._table.text.get(f"layers.{layer}.linear_attn.conv1d.weight")
            if kind is LayerType.linear_attention and tensor is not None and len(tensor.shape) == 3:
                found.setdefault(tensor.shape[1:] == (1, kernel), tensor)
        if len(found) == 2:
            self._mismatch(found[True], f"has its axes in another order than {quoted_text(found[False].name)}")
        if found:
            return True in found
        return not any("switch_mlp" in layouts for layouts in self._layouts.values())

    def _refuse_missing(self) -> None:
        if not self._missing:
            return
        prefix = self._table.prefix
        raw = (name if name.startswith("lm_head.") else prefix + name for name in self._missing)
        remedy = "download the rest of the checkpoint, or take config.json from the same source as the files"
        raise CheckpointError(
            f"{quoted_path(self._any_path())}: {len(self._missing)} tensors are missing: {summarise(raw)}; "
            f"{self._other_quantization() or remedy}"
        )

    def _refuse_unexpected(self) -> list[TensorEntry]:
        """Refuse tensors that would change the model's results; returns those that are simply not needed."""
        unneeded: list[TensorEntry] = []
        unexpected = list(self._table.unknown)
        for name, entry in self._table.text.items():
            if name not in self._used:
                (unneeded if self._tied and name.startswith("lm_head.") else unexpected).append(entry)
        if unexpected:
            names = summarise(quoted_text(entry.name) for entry in unexpected)
            remedy = "take config.json and the files from one supported source"
            raise CheckpointError(
                f"{quoted_path(unexpected[0].path)}: {len(unexpected)} tensors have no place in the model that "
                f"config.json describes: {names}; {self._other_quantization() or remedy}"
            )
        return unneeded

    def _any_path(self) -> Path:
        """The path for errors without a particular tensor: the only file, or the directory."""
        paths = list(self._table.identities)
        return paths[0] if len(paths) == 1 else paths[0].parent


def text_bytes(source: CheckpointSource, tied: bool) -> int:
    """Bytes of all tensors of the text model; a tied head is not counted again."""
    matrices = (matrix for matrix in source.matrices if not (tied and matrix.name == "lm_head"))
    return sum(matrix.total_bytes for matrix in matrices) + sum(vector.total_bytes for vector in source.vectors)
