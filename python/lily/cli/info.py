"""lily info: what a checkpoint contains and how much memory it needs, from its headers alone."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from lily.checkpoint import (
    Checkpoint,
    MatrixSource,
    VectorSource,
    plan,
    read_checkpoint,
    resolve_source,
)
from lily.cli import options
from lily.cli.command import command

__all__ = ["info"]

DEFAULT_CONTEXT = 32768
# A weight's part by the words in its canonical name; the first that matches counts.
_PARTS = (
    ("embedding", ("embed_tokens",)),
    ("output head", ("lm_head",)),
    ("experts", (".experts.",)),
    ("shared expert", (".shared_expert",)),
    ("router", (".mlp.gate",)),
    ("linear attention", (".linear_attn.",)),
    ("full attention", (".self_attn.",)),
    ("norms", ("norm",)),
)


@command("""\
  lily info lily-tiny
  lily info ./Qwen3.6-35B-A3B-4bit --context 131072
  lily info ./Qwen3.6-35B-A3B-4bit --json
""")
def info(
    path: Annotated[str | None, typer.Argument(metavar="PATH", help="Checkpoint, named as for lily chat.")] = None,
    context: Annotated[int | None, typer.Option(min=1, help="Tokens to plan the memory for.")] = None,
    threads: options.Threads = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Show a checkpoint's architecture, quantization and memory, without loading it."""
    if path is None:
        raise typer.BadParameter("give the PATH of a checkpoint")
    checkpoint = read_checkpoint(resolve_source(path))
    length = min(DEFAULT_CONTEXT, checkpoint.config.max_position_embeddings) if context is None else context
    report = _report(checkpoint, plan(checkpoint, length, threads=threads).to_dict())
    if as_json:
        sys.stdout.write(json.dumps(report, ensure_ascii=False, indent=2) + "\n")
    else:
        _print(report)


def _report(checkpoint: Checkpoint, memory: dict[str, int]) -> dict[str, Any]:
    config = checkpoint.config
    return {
        "path": str(checkpoint.directory),
        "model_type": checkpoint.raw_config.get("model_type"),
        "architecture": {
            "layers": config.num_hidden_layers,
            "linear_attention_layers": config.num_linear_layers,
            "full_attention_layers": config.num_full_attention_layers,
            "hidden_size": config.hidden_size,
            "vocab_size": config.vocab_size,
            "attention_heads": config.num_attention_heads,
            "key_value_heads": config.num_key_value_heads,
            "head_dim": config.head_dim,
            "linear_key_heads": config.linear_num_key_heads,
            "linear_value_heads": config.linear_num_value_heads,
            "experts": config.num_experts,
            "experts_per_token": config.num_experts_per_tok,
            "max_context": config.max_position_embeddings,
            "tied_embeddings": checkpoint.tied_embeddings,
        },
        "parameters": _parameters(checkpoint),
        "quantization": _quantization(checkpoint),
        "files": len(checkpoint.source.files),
        "tensors": checkpoint.text_tensors,
        "bytes": _bytes_by_part(checkpoint),
        "ignored": {
            "tensors": len(checkpoint.ignored),
            "bytes": checkpoint.ignored_bytes,
            "names": list(checkpoint.ignored),
        },
        "plan": memory,
    }


def _own_weights(checkpoint: Checkpoint) -> list[MatrixSource | VectorSource]:
    """Every weight once: a tied output head is the embedding."""
    matrices = checkpoint.source.matrices
    own = [matrix for matrix in matrices if not (checkpoint.tied_embeddings and matrix.name == "lm_head")]
    return [*own, *checkpoint.source.vectors]


def _parameters(checkpoint: Checkpoint) -> int:
    return sum(
        weight.size if isinstance(weight, VectorSource) else weight.count * weight.rows * weight.columns
        for weight in _own_weights(checkpoint)
    )


def _quantization(checkpoint: Checkpoint) -> list[dict[str, Any]]:
    """Matrices counted by their format."""
    counts: dict[tuple[str, int, str], list[int]] = {}
    for matrix in _own_weights(checkpoint):
        if isinstance(matrix, MatrixSource):
            kind = (matrix.format.value, matrix.group_size, matrix.element_type.value)
            entry = counts.setdefault(kind, [0, 0])
            entry[0] += matrix.count
            entry[1] += matrix.total_bytes
    return [
        {"format": name, "group_size": group, "element_type": element, "matrices": count, "bytes": size}
        for (name, group, element), (count, size) in counts.items()
    ]


def _bytes_by_part(checkpoint: Checkpoint) -> dict[str, int]:
    sizes = {part: 0 for part, _ in _PARTS}
    for weight in _own_weights(checkpoint):
        part = next(part for part, words in _PARTS if any(word in weight.name for word in words))
        sizes[part] += weight.total_bytes
    return sizes


def _print(report: dict[str, Any]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"{report['path']}  ({report['model_type']}, {report['files']} files)", markup=False)
    console.print(f"{report['parameters']:,} parameters in {report['tensors']:,} tensors")
    dimensions = [(name.replace("_", " "), str(value)) for name, value in report["architecture"].items()]
    console.print(_table("Architecture", dimensions))
    formats = [
        (_format_name(entry), f"{entry['matrices']:,} matrices", _size(entry["bytes"]))
        for entry in report["quantization"]
    ]
    console.print(_table("Quantization", formats))
    parts = [(name, f"{size:,}", _size(size)) for name, size in report["bytes"].items() if size]
    ignored = report["ignored"]
    if ignored["tensors"]:
        label = f"ignored ({ignored['tensors']} tensors)"
        parts.append((label, f"{ignored['bytes']:,}", _size(ignored["bytes"])))
    console.print(_table("Bytes", parts))
    memory = report["plan"]
    counts = ("context", "prefill_chunk", "threads")
    rows = [(name.replace("_", " "), f"{size:,}", _size(size)) for name, size in memory.items() if name not in counts]
    console.print(_table(f"Memory at a context of {memory['context']:,} tokens", rows))


def _format_name(entry: dict[str, Any]) -> str:
    group = f", groups of {entry['group_size']}" if entry["group_size"] else ""
    return f"{entry['format']}{group}, {entry['element_type']}"


def _table(title: str, rows: Sequence[tuple[str, ...]]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2))
    for column in range(len(rows[0])):
        table.add_column(justify="right" if column else "left")
    for row in rows:
        table.add_row(*row)
    return table


def _size(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{count} B" if unit == "B" else f"{size:.2f} {unit}"
        size /= 1024
    return f"{size:.2f} TiB"
