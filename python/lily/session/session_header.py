"""The header of a session file, checked before any of its tensors is read."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from lily import _core
from lily.checkpoint.json_file import parse_json_object
from lily.checks.quoting import quoted_text
from lily.errors import CheckpointError, ContextOverflowError
from lily.files.regular_file import read_at

if TYPE_CHECKING:
    from lily.model import Model

__all__ = [
    "FORMAT",
    "VERSION",
    "DamagedSessionError",
    "SessionHeader",
    "StoredTensor",
    "check_belongs",
    "check_tensors",
    "dimensions_of",
    "is_session_file",
    "read_header",
    "refuse",
]

FORMAT = "lily-session"
VERSION = 1
_REMEDY = "prefill the tokens again and save a new file"
_MOST_HEADER_BYTES = 1 << 20  # that of the real model has 13,000
_QUOTED = 100  # characters of a value in an error

#: Bytes of an element, by its name in safetensors. The values of bfloat16 tensors are stored as U16.
ELEMENT_BYTES = {"F32": 4, "F16": 2, "U16": 2, "I32": 4}
_STORED_AS = {"F32": "F32", "F16": "F16", "BF16": "U16"}


class DamagedSessionError(CheckpointError):
    """A session file's content is not what was written."""


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a file."""

    dtype: str  # safetensors' name
    shape: tuple[int, ...]
    offset: int  # bytes from the beginning of the file
    size: int  # bytes

    @property
    def end(self) -> int:
        """Its end, in bytes from the beginning of the file."""
        return self.offset + self.size


@dataclass(frozen=True)
class SessionHeader:
    """The fields of a session file; only their form has been checked."""

    path: Path
    fields: dict[str, Any]
    text: str  # text of the fields, as used for the checksum
    checksum: str
    tensors: dict[str, StoredTensor]
    file_size: int

    @property
    def position(self) -> int:
        """Number of tokens."""
        position: int = self.fields["position"]
        return position


def read_header(path: Path, descriptor: int) -> SessionHeader:
    """The header of an open file.

    Raises
    ------
    CheckpointError
        It is not a session file, is damaged, or has another version of the format.
    """
    size = os.fstat(descriptor).st_size
    table, begin = _table(path, descriptor, size)
    fields, text, checksum = _metadata(path, table)
    _check_fields(path, fields)
    tensors = {name: _tensor(path, name, entry, begin) for name, entry in table.items()}
    _check_places(path, tensors, begin, size)
    return SessionHeader(path, fields, text, checksum, tensors, size)


def is_session_file(path: Path, descriptor: int) -> bool:
    """Whether an open file begins like a session file of any version, complete or not."""
    try:
        fields, _, _ = _metadata(path, _table(path, descriptor, os.fstat(descriptor).st_size)[0])
    except (CheckpointError, OSError):
        return False
    return fields.get("format") == FORMAT


def _table(path: Path, descriptor: int, size: int) -> tuple[dict[str, Any], int]:
    """(the header's JSON, where the data begins)."""
    start = bytearray(8)
    length = int.from_bytes(start, "little") if read_at(descriptor, 0, memoryview(start)) else 0
    if not 2 <= length <= min(size - 8, _MOST_HEADER_BYTES):
        _damaged(path, "it is not a session file, or it is incomplete")
    data = bytearray(length)
    if not read_at(descriptor, 8, memoryview(data)):
        _damaged(path, "it ends within its header")
    return parse_json_object(bytes(data), str(path), DamagedSessionError), 8 + length


def _metadata(path: Path, table: dict[str, Any]) -> tuple[dict[str, Any], str, str]:
    """(the fields, their text, the checksum), taken out of the header's JSON."""
    metadata = table.pop("__metadata__", None)
    text, checksum = (metadata.get(key) for key in ("lily", "sha256")) if isinstance(metadata, dict) else (None, None)
    if not isinstance(text, str):
        refuse(path, "it is not a session file")
    fields = parse_json_object(text.encode("utf-8", "replace"), str(path), DamagedSessionError)
    return fields, text, checksum if isinstance(checksum, str) else ""


def check_belongs(header: SessionHeader, model: Model, fingerprint: str) -> None:
    """Refuse a file whose weights, dimensions or arithmetic differ from the model's."""
    path, fields = header.path, header.fields
    saved = fields.get("dimensions")
    if not isinstance(saved, dict):
        refuse(path, "it has no dimensions")
    for name, value in dimensions_of(model).items():
        if saved.get(name) != value:
            found = _quoted(saved.get(name))
            refuse(path, f"it belongs to a model whose {name} is {found}, and this one's is {_quoted(value)}")
    if fields.get("fingerprint") != fingerprint:
        refuse(path, f"its weights are not those of {model.checkpoint.directory}")
    if fields.get("arithmetic") != model.arithmetic:
        raise CheckpointError(
            f"{path}: it was computed by {_quoted(fields.get('arithmetic'))} and this model computes by "
            f"{model.arithmetic!r}, which rounds differently; load the model with the file's backend and options"
        )


def check_tensors(header: SessionHeader, model: Model) -> list[tuple[str, str]]:
    """(name, type in the state) of every tensor of the state, in its order.

    After this, the file's tensors are exactly those of the model at the file's position, so none is larger than the
    model's own.
    """
    length = header.position + (header.fields["pending"] is not None)
    if length > model.max_context:
        raise ContextOverflowError(
            f"{header.path}: a state of {length} tokens does not fit in the maximum context of {model.max_context} "
            "(max_context of Model.load)"
        )
    tokens = header.tensors.get("tokens")
    if tokens is None or tokens.shape != (header.position,):
        refuse(header.path, "its tokens do not match its position")
    state = _core.state_tensors(model.core, header.position)
    wanted = {name: (_STORED_AS[kind], tuple(shape)) for name, kind, shape in state}
    wanted["tokens"] = ("I32", (header.position,))
    if "logits" in header.tensors:
        wanted["logits"] = ("F32", (model.config.vocab_size,))
    for name, (dtype, shape) in wanted.items():
        found = header.tensors.get(name)
        if found is None:
            refuse(header.path, f"tensor {name!r} is missing")
        if (found.dtype, found.shape) != (dtype, shape):
            refuse(
                header.path,
                f"tensor {name!r} is {found.dtype} {_quoted(found.shape)} but should be {dtype} {shape}",
            )
    unknown = header.tensors.keys() - wanted.keys()
    if unknown:
        refuse(header.path, f"tensor {_quoted(min(unknown))} is unknown")
    return [(name, kind) for name, kind, _ in state]


def dimensions_of(model: Model) -> dict[str, Any]:
    """Everything that the layout and meaning of the state depend on, after a round trip through JSON."""
    fields: dict[str, Any] = json.loads(json.dumps(asdict(model.config)))
    return fields


def refuse(path: Path, problem: str) -> NoReturn:
    """Raise the error for an unsuitable file."""
    raise CheckpointError(f"{path}: {problem}; {_REMEDY}")


def _damaged(path: Path, problem: str) -> NoReturn:
    raise DamagedSessionError(f"{path}: {problem}; {_REMEDY}")


def _check_fields(path: Path, fields: dict[str, Any]) -> None:
    if fields.get("format") != FORMAT:
        refuse(path, "it is not a session file")
    if fields.get("version") != VERSION:
        raise CheckpointError(
            f"{path}: it has version {_quoted(fields.get('version'))} of the format, but this Lily reads "
            f"version {VERSION}"
        )
    pending = fields.get("pending")
    if not _is_count(fields.get("position"), 1 << 31) or not _is_count(fields.get("seed"), 1 << 64):
        _damaged(path, "its position or seed is not a number")
    if pending is not None and not _is_count(pending, 1 << 31):
        _damaged(path, "its pending token is not a number")
    fields.setdefault("pending", None)


def _tensor(path: Path, name: str, entry: Any, begin: int) -> StoredTensor:
    described = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = (described.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or not isinstance(shape, list) or not isinstance(offsets, list):
        _damaged(path, f"the entry of tensor {_quoted(name)} is damaged")
    if len(offsets) != 2 or len(shape) > 4 or not all(map(_is_count, [*shape, *offsets])):
        _damaged(path, f"the entry of tensor {_quoted(name)} is damaged")
    if dtype not in ELEMENT_BYTES:
        refuse(path, f"tensor {_quoted(name)} has the unknown type {_quoted(dtype)}")
    first, last = offsets
    if last - first != prod(shape) * ELEMENT_BYTES[dtype]:
        _damaged(path, f"the size of tensor {_quoted(name)} does not match its shape")
    return StoredTensor(dtype, tuple(shape), begin + first, last - first)


def _check_places(path: Path, tensors: dict[str, StoredTensor], begin: int, size: int) -> None:
    """Tensors are contiguous from the header to the end of the file."""
    for tensor in sorted(tensors.values(), key=lambda one: (one.offset, one.end)):
        if tensor.offset != begin:
            _damaged(path, "its tensors overlap or leave gaps")
        begin = tensor.end
    if begin != size:
        _damaged(path, f"it has {size} bytes and its tensors end at {_quoted(begin)}: it is incomplete or has grown")


def _is_count(value: object, limit: int = 1 << 62) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < limit


def _quoted(value: object) -> str:
    text = quoted_text(repr(value))
    return text if len(text) <= _QUOTED else text[:_QUOTED] + "..."
