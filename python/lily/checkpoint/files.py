"""Which files make up a checkpoint: one file, shards with an index, or shards without one."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from lily.checkpoint.foreign_content import foreign_name, is_apple_double
from lily.checkpoint.json_file import read_json_object
from lily.checkpoint.read_file import INDEX_LIMIT
from lily.checks.quoting import quoted_names, quoted_path, quoted_text, reason
from lily.errors import CheckpointError

_INDEX_NAME = "model.safetensors.index.json"
_SINGLE_NAME = "model.safetensors"
_ADAPTERS = ("adapters.safetensors", "adapter_model.safetensors")
_SHARD = re.compile(r"(.*)-(\d{1,6})-of-(\d{1,6})\.safetensors", re.DOTALL)


@dataclass(frozen=True)
class CheckpointFiles:
    directory: Path
    config: Path
    shards: tuple[Path, ...]
    index: Path | None = None
    weight_map: Mapping[str, str] = field(default_factory=dict)  # tensor to file name, from the index


def find_files(path: Path) -> CheckpointFiles:
    """The files of a checkpoint directory, or of a single .safetensors file beside its config.json.

    Raises
    ------
    CheckpointError
        Nothing usable is there, a shard is missing, or the index is damaged or points outside the directory.
    """
    path = path.absolute()
    try:
        is_directory, is_file = path.is_dir(), path.is_file()
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{quoted_path(path)}: is not a usable path ({reason(error)})") from error
    if is_file:
        foreign = foreign_name(path.name)
        if foreign is not None:
            raise CheckpointError(f"{quoted_path(path)}: {foreign}")
        if path.suffix == ".json":
            raise CheckpointError(f"{quoted_path(path)}: is a part of a checkpoint; give its directory instead")
        if path.suffix != ".safetensors":
            raise CheckpointError(
                f"{quoted_path(path)}: is not a safetensors file; give the checkpoint's directory or such a file"
            )
        return CheckpointFiles(path.parent, path.parent / "config.json", (path,))
    if not is_directory and path.exists():
        raise CheckpointError(
            f"{quoted_path(path)}: is neither a directory nor a regular file; give a checkpoint's directory"
        )
    if not is_directory:
        raise CheckpointError(
            f"{quoted_path(path)}: no such checkpoint; give a directory with config.json and .safetensors files"
        )
    index = _find_index(path)
    if index is not None:
        return _indexed(path, index)
    return CheckpointFiles(path, path / "config.json", _unindexed(path))


def _listing(directory: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in directory.iterdir() if not is_apple_double(entry.name))
    except OSError as error:
        raise CheckpointError(
            f"{quoted_path(directory)}: cannot be listed ({reason(error)}); check its permissions"
        ) from error


def _find_index(directory: Path) -> Path | None:
    names = [name for name in _listing(directory) if name.endswith(".safetensors.index.json")]
    if not names:
        return None
    if _INDEX_NAME in names or len(names) == 1:
        return directory / (_INDEX_NAME if _INDEX_NAME in names else names[0])
    raise CheckpointError(
        f"{quoted_path(directory)}: has several indexes ({quoted_names(names)}); keep the one of the model"
    )


def _indexed(directory: Path, index: Path) -> CheckpointFiles:
    content = read_json_object(index, CheckpointError, limit=INDEX_LIMIT)
    weight_map = content.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{quoted_path(index)}: its weight_map is missing or empty; download the index again")
    for tensor, name in weight_map.items():
        _check_shard_name(index, tensor, name)
    names = sorted(set(weight_map.values()))
    missing = [name for name in names if not os.path.lexists(directory / name)]
    single = directory / _SINGLE_NAME
    if missing == names and single.is_file():  # the index of shards that were joined to one file
        return CheckpointFiles(directory, directory / "config.json", (single,))
    if missing:
        raise CheckpointError(
            f"{quoted_path(directory)}: {len(missing)} of the {len(names)} files that {quoted_text(index.name)} names "
            f"are missing: {quoted_names(missing)}; download them"
        )
    shards = tuple(directory / name for name in names)
    return CheckpointFiles(directory, directory / "config.json", shards, index, weight_map)


def _check_shard_name(index: Path, tensor: str, name: Any) -> None:
    """Refuse names that could reach outside the checkpoint's directory."""
    problem = None
    if not isinstance(name, str):
        problem = "must be a file name"
    elif not name.endswith(".safetensors") or not name.isprintable():
        problem = "is not the name of a .safetensors file"
    elif name.startswith("/") or "\\" in name or ":" in name or ".." in PurePosixPath(name).parts:
        problem = "reaches outside the checkpoint's directory"
    elif len(name) > 255:
        problem = "is too long for a file name"
    if problem is not None:
        raise CheckpointError(
            f"{quoted_path(index)}: weight_map entry {quoted_text(tensor)}: {quoted_text(repr(name))} {problem}; "
            "take the index from the checkpoint's source"
        )


def _no_weights(directory: Path, listing: list[str]) -> CheckpointError:
    """The error for a directory without weights; names weights of other formats in it."""
    for name in listing:
        foreign = foreign_name(name)
        if foreign is not None:
            return CheckpointError(f"{quoted_path(directory / name)}: {foreign}")
    return CheckpointError(f"{quoted_path(directory)}: has no .safetensors file; download the weights")


def _unindexed(directory: Path) -> tuple[Path, ...]:
    listing = _listing(directory)
    names = [name for name in listing if name.endswith(".safetensors")]
    names = [name for name in names if name.startswith("model")] or names
    if not names:
        raise _no_weights(directory, listing)
    if all(name in _ADAPTERS for name in names):
        raise CheckpointError(
            f"{quoted_path(directory / names[0])}: is a LoRA adapter, not a model; fuse it with its model first "
            "(mlx_lm.fuse) and give the fused checkpoint"
        )
    missing: set[str] = set()
    for name in names:
        match = _SHARD.fullmatch(name)
        if match is None:
            continue
        stem, number, total = match.groups()
        if int(total) > 10_000 or int(number) > int(total):
            raise CheckpointError(
                f"{quoted_path(directory / name)}: its shard number is above the number of shards; rename it"
            )
        siblings = (f"{stem}-{i:0{len(number)}d}-of-{total}.safetensors" for i in range(1, int(total) + 1))
        missing.update(siblings)
    missing.difference_update(names)
    if missing:
        raise CheckpointError(
            f"{quoted_path(directory)}: shards are missing: {quoted_names(sorted(missing))}; download them"
        )
    return tuple(directory / name for name in names)
