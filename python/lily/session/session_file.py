"""Session files: a snapshot in a safetensors file that only the same weights accept."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import numpy.typing as npt

from lily import _core
from lily.errors import CheckpointError, InvalidArgumentError, NonFiniteError
from lily.files.partial_files import lock_partial, partial_name, remove_abandoned
from lily.files.regular_file import flush_directory, open_regular, read_at
from lily.session.session_header import (
    ELEMENT_BYTES,
    FORMAT,
    VERSION,
    DamagedSessionError,
    SessionHeader,
    check_belongs,
    check_tensors,
    dimensions_of,
    is_session_file,
    read_header,
    refuse,
)

if TYPE_CHECKING:
    from lily.model import Model

__all__ = ["load_snapshot", "read_tokens", "save_snapshot", "saved_size"]

# How a state's values are stored: the type's name in safetensors, and NumPy's type. NumPy has no bfloat16; its bits are
# stored as U16, and "kv_cache_type" in the file says so.
_STORED: dict[str, tuple[str, np.dtype[Any]]] = {
    "F32": ("F32", np.dtype(np.float32)),
    "F16": ("F16", np.dtype(np.float16)),
    "BF16": ("U16", np.dtype(np.uint16)),
    "I32": ("I32", np.dtype(np.int32)),
}
_NO_CHECKSUM = "0" * 64  # in the header while the tensors are written

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class _Part:
    """One tensor to be written."""

    name: str
    kind: str  # key of _STORED
    shape: tuple[int, ...]
    values: Callable[[], Bytes]

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * ELEMENT_BYTES[_STORED[self.kind][0]]


def save_snapshot(
    path: str | PathLike[str],
    model: Model,
    snapshot: _core.Snapshot,
    seed: int,
    *,
    durable: bool = True,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Write a snapshot; `path` always has either its previous content or the complete new file.

    Parameters
    ----------
    path, model, snapshot, seed
        What to write where.
    durable
        Whether the file must survive a power loss; if so, waits for the disk.
    check
        Called between tensors; an exception ends the writing.

    Raises
    ------
    OSError
        The file cannot be written.
    NonFiniteError
        The state contains values that are not finite.
    """
    target = _writable(Path(path))
    parts = _parts(snapshot)
    text = json.dumps(_fields(model, snapshot, seed), sort_keys=True)
    partial = target.with_name(partial_name(target.name))
    created = False
    try:
        with open(partial, "xb", buffering=0, opener=None if durable else _for_the_owner) as stream:
            created = True
            if durable and target.exists():
                os.fchmod(stream.fileno(), stat.S_IMODE(target.stat().st_mode))  # permissions stay the same
            _write(stream, text, parts, check)
            if durable:
                os.fsync(stream.fileno())
        partial.replace(target)
    except BaseException:
        if created:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
        raise
    if durable:
        flush_directory(target.parent)
        with contextlib.suppress(OSError):
            remove_abandoned(target.parent, re.escape(target.name), is_session_file)


def _for_the_owner(path: str, flags: int) -> int:
    """Create a cache file, readable only by its owner because it contains the ids of prompts."""
    return os.open(path, flags, 0o600)


def saved_size(model: Model, snapshot: _core.Snapshot) -> int:
    """Bytes of the file that `save_snapshot` would write."""
    parts = _parts(snapshot)
    return len(_header(json.dumps(_fields(model, snapshot, 1 << 63)), parts)) + sum(part.size for part in parts)


def load_snapshot(path: str | PathLike[str], model: Model) -> tuple[_core.Snapshot, int]:
    """(snapshot, seed) of a file that was saved with the same weights."""
    file = Path(path)
    with _reading(file) as descriptor:
        header = read_header(file, descriptor)
        check_belongs(header, model, model.fingerprint)
        state = check_tensors(header, model)
        return _read_snapshot(header, descriptor, model, state), header.fields["seed"]


def read_tokens(path: Path, model: Model) -> npt.NDArray[np.int32]:
    """Token ids of a file that was saved with the same weights; its state is not read."""
    with _reading(path) as descriptor:
        header = read_header(path, descriptor)
        check_belongs(header, model, model.fingerprint)
        check_tensors(header, model)
        return _read_tensor(header, descriptor, "tokens").view(np.int32)


# -- writing -------------------------------------------------------------------------------------------------------


def _fields(model: Model, snapshot: _core.Snapshot, seed: int) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "fingerprint": model.fingerprint,
        "dimensions": dimensions_of(model),
        "kv_cache_type": model.core.options.kv_cache_type,
        "arithmetic": model.arithmetic,
        "position": len(snapshot.tokens),
        "pending": snapshot.pending,
        "seed": seed,
    }


def _parts(snapshot: _core.Snapshot) -> list[_Part]:
    """Everything to be written, in the order of names, which the checksum uses."""

    def state(index: int) -> Callable[[], Bytes]:
        return lambda: snapshot.export_tensor(index)

    def of(array: npt.NDArray[Any]) -> Callable[[], Bytes]:
        return lambda: array.view(np.uint8)

    tokens, logits = snapshot.tokens, snapshot.logits
    parts = [
        _Part(name, kind, tuple(shape), state(index)) for index, (name, kind, shape) in enumerate(snapshot.tensors())
    ]
    parts.append(_Part("tokens", "I32", tokens.shape, of(tokens)))
    if logits is not None:
        parts.append(_Part("logits", "F32", logits.shape, of(logits)))
    return sorted(parts, key=lambda part: part.name)


def _header(text: str, parts: list[_Part]) -> bytes:
    table: dict[str, Any] = {"__metadata__": {"lily": text, "sha256": _NO_CHECKSUM}}
    offset = 0
    for part in parts:
        offsets = [offset, offset + part.size]
        table[part.name] = {"dtype": _STORED[part.kind][0], "shape": part.shape, "data_offsets": offsets}
        offset += part.size
    data = json.dumps(table, separators=(",", ":")).encode()
    data += b" " * (-len(data) % 8)
    return len(data).to_bytes(8, "little") + data


def _write(stream: BinaryIO, text: str, parts: list[_Part], check: Callable[[], None]) -> None:
    lock_partial(stream)
    header = _header(text, parts)
    _write_all(stream, header)
    digest = hashlib.sha256(text.encode())
    for part in parts:
        check()
        values = part.values()
        _check_finite(part.name, part.kind, part.shape, values)
        digest.update(_description(part.name, _STORED[part.kind][1], part.shape))
        digest.update(values.data)
        _write_all(stream, values.data)
    stream.seek(header.index(_NO_CHECKSUM.encode()))
    _write_all(stream, digest.hexdigest().encode())


def _write_all(stream: BinaryIO, data: bytes | memoryview) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[stream.write(rest) :]


def _writable(path: Path) -> Path:
    """The file to replace: `path`, or the target of its link. Devices, pipes and directories are never replaced."""
    target = path.resolve() if path.is_symlink() else path
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "a session cannot be saved over a directory", str(path))
    if target.exists() and not target.is_file():
        raise OSError(errno.EINVAL, "a session can be saved to a regular file only", str(path))
    return target


# -- reading -------------------------------------------------------------------------------------------------------


def _read_snapshot(
    header: SessionHeader, descriptor: int, model: Model, state: list[tuple[str, str]]
) -> _core.Snapshot:
    builder = _core.SnapshotBuilder(model.core, header.position)
    kinds = dict(state) | {"tokens": "I32", "logits": "F32"}
    indices = {name: index for index, (name, _) in enumerate(state)}
    kept: dict[str, Bytes] = {}
    digest = hashlib.sha256(header.text.encode())
    not_finite: NonFiniteError | None = None
    for name in sorted(header.tensors):
        values, shape = _read_tensor(header, descriptor, name), header.tensors[name].shape
        digest.update(_description(name, _STORED[kinds[name]][1], shape))
        digest.update(values.data)
        try:
            _check_finite(name, kinds[name], shape, values)
        except NonFiniteError as error:
            not_finite = not_finite or error
        if name in indices:
            builder.import_tensor(indices[name], values)
        else:
            kept[name] = values
    if digest.hexdigest() != header.checksum:
        raise DamagedSessionError(
            f"{header.path}: its checksum does not match its content: the file is damaged; "
            "prefill the tokens again and save a new file"
        )
    if not_finite is not None:
        raise NonFiniteError(f"{header.path}: {not_finite}")
    logits = kept.get("logits", np.empty(0, np.uint8)).view(np.float32)
    try:
        return builder.build(kept["tokens"].view(np.int32), header.fields["pending"], logits)
    except InvalidArgumentError as error:
        refuse(header.path, str(error))


def _read_tensor(header: SessionHeader, descriptor: int, name: str) -> Bytes:
    tensor = header.tensors[name]
    values = np.empty(tensor.size, np.uint8)
    if not read_at(descriptor, tensor.offset, values.data):
        raise DamagedSessionError(f"{header.path}: it was cut short while it was read; prefill the tokens again")
    return values


@contextlib.contextmanager
def _reading(file: Path) -> Iterator[int]:
    try:
        with open_regular(file) as descriptor:
            yield descriptor
    except FileNotFoundError:
        raise CheckpointError(f"{file}: there is no such session file") from None
    except OSError as error:
        refuse(file, f"it cannot be read ({error.strerror or error})")


# -- both ----------------------------------------------------------------------------------------------------------


def _description(name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    return f"{name} {dtype} {shape}".encode()


def _check_finite(name: str, kind: str, shape: tuple[int, ...], values: Bytes) -> None:
    """Refuse a tensor with NaN or infinities: everything computed from it would be NaN."""
    index = None if kind == "I32" else _core.first_non_finite(values, kind)
    if index is None:
        return
    has_positions = name.endswith((".keys", ".values"))
    where = f"position {index // (shape[1] * shape[2])}, {name}" if has_positions else name
    raise NonFiniteError(
        f"values of the state are not finite ({where}); prefill the tokens again in a session that has been reset"
    )
