"""Session files: a snapshot in a safetensors file that only the same weights accept."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from lily import _core
from lily.errors import CheckpointError, InvalidArgumentError

if TYPE_CHECKING:
    from lily.model import Model

__all__ = ["load_snapshot", "read_tokens", "save_snapshot"]

_FORMAT = "lily-session"
_VERSION = 1
_REMEDY = "prefill the tokens again and save the session anew"

# NumPy has no bfloat16: its bits are stored as U16, and "kv_cache_type" in the file says what they are.
_STORED_TYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(np.uint16),
}

Arrays = dict[str, npt.NDArray[Any]]


def save_snapshot(path: str | PathLike[str], model: Model, snapshot: _core.Snapshot, seed: int) -> None:
    """Write a snapshot; `path` holds either what it held before or the complete new file."""
    target = _writable(Path(path))
    logits = snapshot.logits
    arrays: Arrays = {"tokens": snapshot.tokens}
    if logits is not None:
        arrays["logits"] = logits
    for index, (name, kind, shape) in enumerate(snapshot.tensors()):
        arrays[name] = snapshot.export_tensor(index).view(_STORED_TYPES[kind]).reshape(shape)
    header = {
        "format": _FORMAT,
        "version": _VERSION,
        "fingerprint": model._fingerprint,
        "dimensions": _dimensions(model),
        "kv_cache_type": model._open().options.kv_cache_type,
        "arithmetic": model._arithmetic,
        "position": len(arrays["tokens"]),
        "pending": snapshot.pending,
        "seed": seed,
    }
    text = json.dumps(header, sort_keys=True)
    metadata = {"lily": text, "sha256": _checksum(text, arrays)}
    partial = target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}.partial")
    try:
        save_file(arrays, partial, metadata)
        _flush(partial)
        partial.replace(target)
    except SafetensorError as error:
        raise OSError(f"{target}: cannot be written: {error}") from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
    _flush_directory(target.parent)


def _writable(path: Path) -> Path:
    """The file to replace: `path`, or what it links to. Devices, pipes and directories are never replaced."""
    target = path.resolve() if path.is_symlink() else path
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "a session cannot be saved over a directory", str(path))
    if target.exists() and not target.is_file():
        raise OSError(errno.EINVAL, "a session can be saved to a regular file only", str(path))
    return target


def load_snapshot(path: str | PathLike[str], model: Model) -> tuple[_core.Snapshot, int]:
    """(snapshot, seed) of a file that was saved with the same weights."""
    file = Path(path)
    header, checksum, arrays = _read(file, model)
    tokens = arrays["tokens"]
    builder = _core.SnapshotBuilder(model._open(), len(tokens))
    expected = builder.tensors()
    _check_tensors(file, arrays, [(name, _STORED_TYPES[kind], tuple(shape)) for name, kind, shape in expected], model)
    if _checksum(header["text"], arrays) != checksum:
        _refuse(file, "its checksum does not fit its content: it is damaged")
    for index, (name, _, _) in enumerate(expected):
        builder.import_tensor(index, np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8))
    logits = arrays.get("logits", np.empty(0, np.float32))
    try:
        return builder.build(tokens, header["pending"], logits), header["seed"]
    except InvalidArgumentError as error:
        _refuse(file, str(error))


def read_tokens(path: Path, model: Model) -> npt.NDArray[np.int32]:
    """Token ids of a file that was saved with the same weights; its state is not read."""
    with _reading(path), safe_open(path, framework="numpy") as stream:
        _checked_header(path, stream.metadata() or {}, model)
        tokens: npt.NDArray[np.int32] = stream.get_tensor("tokens")
    if tokens.dtype != np.int32 or tokens.ndim != 1:
        _refuse(path, "its tokens have the wrong type")
    return tokens


def _read(file: Path, model: Model) -> tuple[dict[str, Any], str, Arrays]:
    with _reading(file), safe_open(file, framework="numpy") as stream:
        metadata = stream.metadata() or {}
        header = _checked_header(file, metadata, model)
        names = sorted(stream.keys())
        if "tokens" not in names:
            _refuse(file, "it has no tokens")
        position = stream.get_slice("tokens").get_shape()
        if position != [header["position"]]:
            _refuse(file, "its tokens do not fit its position")
        arrays: Arrays = {name: stream.get_tensor(name) for name in names}
    if arrays["tokens"].dtype != np.int32:
        _refuse(file, "its tokens have the wrong type")
    return header, metadata.get("sha256", ""), arrays


@contextlib.contextmanager
def _reading(file: Path) -> Any:
    try:
        if file.exists() and not file.is_file():  # opening a pipe would wait for its writer
            _refuse(file, "it is not a regular file")
        yield
    except SafetensorError as error:
        _refuse(file, f"it is damaged or incomplete ({error})")
    except FileNotFoundError:
        raise CheckpointError(f"{file}: there is no such session file") from None
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, CheckpointError):
            raise
        _refuse(file, f"it cannot be read ({error})")


def _checked_header(file: Path, metadata: Mapping[str, str], model: Model) -> dict[str, Any]:
    text = metadata.get("lily", "")
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict) or header.get("format") != _FORMAT:
        _refuse(file, "it is not a session file")
    if header.get("version") != _VERSION:
        raise CheckpointError(
            f"{file}: it has version {header.get('version')!r} of the format, and this Lily reads version {_VERSION}"
        )
    saved, own = header.get("dimensions"), _dimensions(model)
    if not isinstance(saved, dict):
        _refuse(file, "it has no dimensions")
    for name, value in own.items():
        if saved.get(name) != value:
            _refuse(file, f"it belongs to a model whose {name} is {saved.get(name)!r}, and this one's is {value!r}")
    if header.get("fingerprint") != model._fingerprint:
        _refuse(file, f"it was saved with other weights than those of {model.checkpoint.directory}")
    if header.get("arithmetic") != model._arithmetic:
        raise CheckpointError(
            f"{file}: it was computed by {header.get('arithmetic')!r} and this model computes by "
            f"{model._arithmetic!r}, which rounds otherwise; load the model with the file's backend and options"
        )
    pending, seed, position = header.get("pending"), header.get("seed"), header.get("position")
    if not _is_count(position, 1 << 31) or not _is_count(seed, 1 << 64):
        _refuse(file, "its position or seed is not a number")
    if pending is not None and not _is_count(pending, 1 << 31):
        _refuse(file, "its pending token is not a number")
    return {**header, "text": text}


def _check_tensors(
    file: Path, arrays: Arrays, expected: list[tuple[str, np.dtype[Any], tuple[int, ...]]], model: Model
) -> None:
    wanted = {name: (dtype, shape) for name, dtype, shape in expected}
    wanted["tokens"] = (np.dtype(np.int32), arrays["tokens"].shape)
    if "logits" in arrays:
        wanted["logits"] = (np.dtype(np.float32), (model.config.vocab_size,))
    for name, (dtype, shape) in wanted.items():
        if name not in arrays:
            _refuse(file, f"tensor {name!r} is missing")
        found = arrays[name]
        if found.dtype != dtype or found.shape != shape:
            _refuse(file, f"tensor {name!r} is {found.dtype} {found.shape} and should be {dtype} {shape}")
    unknown = arrays.keys() - wanted.keys()
    if unknown:
        _refuse(file, f"tensor {min(unknown)!r} is unknown")


def _dimensions(model: Model) -> dict[str, Any]:
    """Everything that the layout and meaning of the state depend on, as JSON gives it back."""
    fields: dict[str, Any] = json.loads(json.dumps(asdict(model.config)))
    return fields


def _checksum(text: str, arrays: Arrays) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _is_count(value: object, limit: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < limit


def _refuse(file: Path, problem: str) -> NoReturn:
    raise CheckpointError(f"{file}: {problem}; {_REMEDY}")


def _flush(path: Path) -> None:
    with path.open("rb+") as stream:
        os.fsync(stream.fileno())


def _flush_directory(directory: Path) -> None:
    """Make the new name durable, where the system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
