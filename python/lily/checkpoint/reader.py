"""read_checkpoint: from config, index and headers to a checked description of every weight."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lily.checkpoint.config import ModelConfig, parse_config, tied_embeddings
from lily.checkpoint.files import find_files
from lily.checkpoint.json_file import read_json_object
from lily.checkpoint.quantization import is_plain, parse_quantization
from lily.checkpoint.read_file import CONFIG_LIMIT
from lily.checkpoint.source import CheckpointSource
from lily.checkpoint.tensors import read_tensors
from lily.checkpoint.weights import WeightResolver, text_bytes
from lily.checks.arguments import as_path
from lily.errors import CheckpointError, ConfigError


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that can be loaded, as its headers describe it."""

    directory: Path  # absolute
    config: ModelConfig
    source: CheckpointSource
    raw_config: dict[str, Any]
    tied_embeddings: bool  # the output head is the embedding's matrix
    ignored: tuple[str, ...]  # names of the tensors that the text model does not use
    ignored_bytes: int
    text_tensors: int  # tensors that the text model uses
    text_bytes: int


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Read and check a checkpoint's config, index and headers; no tensor data is read.

    Parameters
    ----------
    path
        A directory, or one .safetensors file beside its config.json.

    Raises
    ------
    ConfigError
        config.json is missing, damaged, or describes a model that is not supported.
    CheckpointError
        A file is missing or damaged, or its tensors do not match the config.
    """
    files = find_files(as_path("path", path, CheckpointError))
    raw = read_json_object(files.config, ConfigError, limit=CONFIG_LIMIT, only_finite=False)
    where = str(files.config)
    config = parse_config(raw, where)
    table = read_tensors(files)
    plain = is_plain([(entry.name, entry.dtype) for entry in (*table.text.values(), *table.unknown)])
    quantization = parse_quantization(raw, where, plain=plain)
    has_head = any(name.startswith("lm_head.") for name in table.text)
    tied = tied_embeddings(raw, where, has_head=has_head)
    source, unneeded = WeightResolver(table, config, quantization, tied).resolve()
    ignored = sorted((*table.skipped, *unneeded), key=lambda entry: entry.name)
    return Checkpoint(
        directory=files.directory,
        config=config,
        source=source,
        raw_config=raw,
        tied_embeddings=tied,
        ignored=tuple(entry.name for entry in ignored),
        ignored_bytes=sum(entry.size for entry in ignored),
        text_tensors=len(table.text) - len(unneeded),
        text_bytes=text_bytes(source, tied),
    )
