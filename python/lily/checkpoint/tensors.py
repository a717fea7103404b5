"""TensorTable: every tensor of a checkpoint by canonical name, from the headers of all its files."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from lily.checkpoint.files import CheckpointFiles
from lily.checkpoint.names import is_skipped, split_prefix, summarise
from lily.checkpoint.safetensors_header import SafetensorsFile, TensorEntry, read_header
from lily.checkpoint.source import FileIdentity
from lily.checks.quoting import quoted_path, quoted_text
from lily.errors import CheckpointError

_MAX_NAMED_FILES = 4  # in one error


@dataclass(frozen=True)
class TensorTable:
    text: dict[str, TensorEntry]  # by canonical name
    skipped: tuple[TensorEntry, ...]  # vision, multi-token prediction
    unknown: tuple[TensorEntry, ...]
    prefix: str  # the prefix that most tensors of the text model have
    identities: dict[Path, FileIdentity]


def read_tensors(files: CheckpointFiles) -> TensorTable:
    """Read all headers and name every tensor.

    Raises
    ------
    CheckpointError
        A header is damaged, a tensor occurs twice, or the index and the files disagree.
    """
    headers = [read_header(path) for path in files.shards]
    by_name = _by_raw_name(headers)
    _check_index(files, by_name)
    text: dict[str, TensorEntry] = {}
    skipped: list[TensorEntry] = []
    unknown: list[TensorEntry] = []
    prefixes: Counter[str] = Counter()
    for raw, entry in by_name.items():
        parts = split_prefix(raw)
        if is_skipped(raw) or parts is None:
            (skipped if is_skipped(raw) else unknown).append(entry)
            continue
        prefix, name = parts
        if name in text:
            raise CheckpointError(
                f"{entry.label}: is the same tensor as {quoted_text(text[name].name)} in "
                f"{quoted_path(text[name].path)}, under another prefix; remove the files that do not belong to the "
                "checkpoint"
            )
        text[name] = entry
        if not name.startswith("lm_head."):
            prefixes[prefix] += 1
    prefix = prefixes.most_common(1)[0][0] if prefixes else "language_model.model."
    identities = {header.path: header.identity for header in headers}
    return TensorTable(text, tuple(skipped), tuple(unknown), prefix, identities)


def _by_raw_name(headers: list[SafetensorsFile]) -> dict[str, TensorEntry]:
    by_name: dict[str, TensorEntry] = {}
    for header in headers:
        for entry in header.tensors:
            other = by_name.setdefault(entry.name, entry)
            if other is not entry:
                raise CheckpointError(
                    f"{entry.label}: is also in {quoted_path(other.path)}; "
                    "remove the file that does not belong to the checkpoint"
                )
    return by_name


def _check_index(files: CheckpointFiles, by_name: dict[str, TensorEntry]) -> None:
    if files.index is None:
        return
    wrong: dict[str, list[str]] = {}
    for raw, file_name in files.weight_map.items():
        entry = by_name.get(raw)
        if entry is None or entry.path != files.directory / file_name:
            wrong.setdefault(file_name, []).append(quoted_text(raw))
    if wrong:
        details = "; ".join(
            f"{quoted_text(name)} lacks {summarise(tensors)}"
            for name, tensors in sorted(wrong.items())[:_MAX_NAMED_FILES]
        )
        raise CheckpointError(
            f"{quoted_path(files.index)}: does not match its files: {details}; "
            "take the index and all shards from the same source"
        )
