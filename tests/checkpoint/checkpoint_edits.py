"""Small edits to a written checkpoint: its config, its index and the headers of its files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Table = dict[str, Any]


def read_header_table(path: Path) -> tuple[Table, bytes]:
    """(header, tensor data) of a safetensors file."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def write_header(path: Path, header: Table | bytes, data: bytes) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def edit_header(path: Path, change: Callable[[Table], object]) -> None:
    header, data = read_header_table(path)
    change(header)
    write_header(path, header, data)


def edit_json(path: Path, change: Callable[[Table], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def edit_config(directory: Path, change: Callable[[Table], object]) -> None:
    edit_json(directory / "config.json", change)


def edit_text_config(directory: Path, change: Callable[[Table], object]) -> None:
    edit_json(directory / "config.json", lambda content: change(content.get("text_config", content)))


def reshape(header: Table, name: str, dtype: str, shape: list[int]) -> None:
    """Give a tensor another type and shape; its bytes stay."""
    header[name]["dtype"] = dtype
    header[name]["shape"] = shape
