"""Session files that were made to harm: refused by their header, before anything of their size is read or allocated."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from lily.errors import CheckpointError, ContextOverflowError, InvalidArgumentError, LilyError, NonFiniteError
from lily.files import regular_file
from lily.session import session_file

HUGE = 6_000_000_000  # bytes

Table = dict[str, Any]


class SessionParts:
    """A saved session taken apart, to be put together otherwise."""

    def __init__(self, path: Path) -> None:
        content = path.read_bytes()
        length = int.from_bytes(content[:8], "little")
        self.table: Table = json.loads(content[8 : 8 + length])
        self.data = content[8 + length :]

    @property
    def fields(self) -> Table:
        fields: Table = json.loads(self.table["__metadata__"]["lily"])
        return fields

    def set_fields(self, **changes: object) -> None:
        text = json.dumps({**self.fields, **changes}, sort_keys=True)
        self.table["__metadata__"]["lily"] = text

    def write(self, path: Path, *, header: bytes | None = None, size: int | None = None) -> Path:
        text = json.dumps(self.table).encode() if header is None else header
        path.write_bytes(len(text).to_bytes(8, "little") + text + self.data)
        if size is not None:
            os.truncate(path, 8 + len(text) + size)
        return path

    def sign(self) -> None:
        """A checksum that fits what is there."""
        digest = hashlib.sha256(self.table["__metadata__"]["lily"].encode())
        names = {"F32": "float32", "F16": "float16", "U16": "uint16", "I32": "int32"}
        for name in sorted(self.table.keys() - {"__metadata__"}):
            entry = self.table[name]
            begin, end = entry["data_offsets"]
            digest.update(f"{name} {names[entry['dtype']]} {tuple(entry['shape'])}".encode())
            digest.update(self.data[begin:end])
        self.table["__metadata__"]["sha256"] = digest.hexdigest()


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory) -> Path:
    """A session of 40 tokens."""
    path = tmp_path_factory.mktemp("saved") / "session"
    with model.prefill(np.random.default_rng(3).integers(0, 4000, 40)) as session:
        session.save(path)
    return path


@pytest.fixture
def parts(saved) -> SessionParts:
    return SessionParts(saved)


def refused(model, path: Path, match: str | None = None, error: type[LilyError] = CheckpointError) -> str:
    """The error of a file, which costs next to no memory; it holds no more than a few hundred characters."""
    tracemalloc.start()
    with pytest.raises(error, match=match) as raised:
        model.load_session(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 40 << 20
    assert len(str(raised.value)) < 480 + len(str(path))
    return str(raised.value)


def test_a_signed_file_is_taken(model, parts, tmp_path):
    """So the tests below are refused for what they change, and not for their checksum."""
    parts.sign()
    assert model.load_session(parts.write(tmp_path / "file")).position == 40


@pytest.mark.parametrize("name", ["extra", "tokens", "logits", "layers.3.keys", "layers.0.recurrent_state"])
def test_a_huge_tensor_is_not_read(model, parts, tmp_path, name):
    """Sparse, so that it costs whoever made it nothing."""
    end = len(parts.data)
    parts.table[name] = {"dtype": "F32", "shape": [HUGE // 4], "data_offsets": [end, end + HUGE]}
    refused(model, parts.write(tmp_path / "file", size=end + HUGE))


def test_a_huge_position_allocates_nothing(model, parts, tmp_path):
    """Of more tokens than the context, and of as many as the context with shapes that do not follow."""
    parts.set_fields(position=1 << 30)
    parts.table["tokens"] = {"dtype": "I32", "shape": [1 << 30], "data_offsets": parts.table["tokens"]["data_offsets"]}
    refused(model, parts.write(tmp_path / "file"), "does not match its shape")
    size = 4 << 30
    end = len(parts.data)
    parts.table["tokens"]["data_offsets"] = [end, end + size]
    refused(model, parts.write(tmp_path / "file", size=end + size))


def reordered(parts: SessionParts, count: int) -> None:
    """Only tokens, as many as are said."""
    parts.table = {
        "__metadata__": parts.table["__metadata__"],
        "tokens": {"dtype": "I32", "shape": [count], "data_offsets": [0, 4 * count]},
    }
    parts.data = b""
    parts.set_fields(position=count)


@pytest.mark.parametrize(
    ("count", "error", "match"),
    [(1 << 30, ContextOverflowError, "1073741824 tokens"), (2048, CheckpointError, "missing")],
)
def test_tokens_alone(model, parts, tmp_path, count, error, match):
    reordered(parts, count)
    refused(model, parts.write(tmp_path / "file", size=4 * count), match, error)


def test_a_pending_token_beyond_the_context(load, parts, tmp_path):
    parts.set_fields(pending=5)
    parts.sign()
    path = parts.write(tmp_path / "file")
    assert load(max_context=41).load_session(path).position == 41
    refused(load(max_context=40), path, "41 tokens", ContextOverflowError)


@pytest.mark.parametrize("length", [0, 1, 2, (1 << 20) + 1, 1 << 40, (1 << 64) - 1])
def test_lengths_of_the_header(model, saved, tmp_path, length):
    path = tmp_path / "file"
    path.write_bytes(length.to_bytes(8, "little") + saved.read_bytes()[8:])
    os.truncate(path, 1 << 41)
    refused(model, path)


@pytest.mark.parametrize(
    "header",
    [
        b"[" * 1_000_000,
        b'{"a":' * 200_000,
        b'{"__metadata__": {"lily": "' + b"x" * 900_000 + b'"}}',
        b'{"__metadata__": {"lily": "' + b"[" * 900_000 + b'"}}',
        b'{"__metadata__": {"lily": 5}}',
        b'{"__metadata__": []}',
        b'{"__metadata__": {"lily": "\\ud800"}}',
        b'{"__metadata__": {"lily": "{}"}, "__metadata__": {"lily": "{}"}}',
        b'{"__metadata__": {"lily": "{\\"format\\": \\"lily-session\\", \\"version\\": 1' + b"0" * 5000 + b'}"}}',
        b"\xff\xfe{}",
        b"null",
    ],
)
def test_headers_that_are_no_table(model, parts, tmp_path, header):
    refused(model, parts.write(tmp_path / "file", header=header))


def twice(parts: SessionParts) -> bytes:
    text = json.dumps(parts.table)
    return (text[:-1] + ', "tokens": ' + json.dumps(parts.table["tokens"]) + "}").encode()


def test_keys_that_appear_twice(model, parts, tmp_path):
    parts.sign()
    refused(model, parts.write(tmp_path / "file", header=twice(parts)), "twice")
    text = parts.table["__metadata__"]["lily"]
    parts.table["__metadata__"]["lily"] = text[:-1] + ', "seed": 7}'
    parts.sign()
    refused(model, parts.write(tmp_path / "file"), "twice")


@pytest.mark.parametrize(
    "entry",
    [
        5,
        None,
        [],
        {},
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 7]},
        {"dtype": "F32", "shape": [-2], "data_offsets": [8, 0]},
        {"dtype": "F32", "shape": [-1, -2], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [1.5], "data_offsets": [0, 6]},
        {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [0] * 100_000, "data_offsets": [0, 0]},
        {"dtype": "F32", "shape": [1 << 61, 8], "data_offsets": [0, 1 << 61]},
        {"dtype": "F32", "shape": 4, "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 8]},
        {"dtype": "F32", "shape": [1], "data_offsets": [1e400, 4]},
        {"dtype": "BOOL", "shape": [1], "data_offsets": [0, 1]},
        {"dtype": ["F32"], "shape": [1], "data_offsets": [0, 4]},
        {"dtype": "F" * 50_000, "shape": [1], "data_offsets": [0, 4]},
    ],
)
def test_entries_that_are_no_tensors(model, parts, tmp_path, entry):
    for name in ("tokens", "layers.3.keys", "new" * 10_000):
        changed = SessionParts.__new__(SessionParts)
        changed.table, changed.data = {**parts.table, name: entry}, parts.data
        refused(model, changed.write(tmp_path / "file"))


def test_tensors_that_overlap_or_leave_gaps(model, parts, tmp_path):
    first, second = parts.table["layers.0.conv_state"], parts.table["layers.1.conv_state"]
    offsets = second["data_offsets"]
    second["data_offsets"] = first["data_offsets"]
    parts.sign()
    refused(model, parts.write(tmp_path / "file"), "overlap or leave gaps")
    second["data_offsets"] = offsets
    parts.data += b"more"
    parts.sign()
    refused(model, parts.write(tmp_path / "file"), "incomplete or has grown")


@pytest.mark.parametrize("value", ["x" * 100_000, [[1] * 1000] * 100, 10**4000, {"a": "b" * 50_000}])
def test_errors_quote_little(model, parts, tmp_path, value):
    for field in ("version", "arithmetic", "fingerprint", "format", "pending", "seed", "position"):
        changed = SessionParts.__new__(SessionParts)
        changed.table = {**parts.table, "__metadata__": dict(parts.table["__metadata__"])}
        changed.data = parts.data
        changed.set_fields(**{field: value})
        refused(model, changed.write(tmp_path / "file"))
    parts.set_fields(dimensions={**parts.fields["dimensions"], "hidden_size": value})
    refused(model, parts.write(tmp_path / "file"), "hidden_size")


@pytest.mark.parametrize(
    ("name", "bits", "place"),
    [
        ("layers.2.recurrent_state", np.float32(np.nan).tobytes(), "layers.2.recurrent_state"),
        ("layers.4.conv_state", np.float32(-np.inf).tobytes(), "layers.4.conv_state"),
        ("layers.3.keys", np.float16(np.inf).tobytes(), "position 39, layers.3.keys"),
        ("layers.7.values", np.float16(np.nan).tobytes(), "position 39, layers.7.values"),
        ("logits", np.float32(np.nan).tobytes(), "logits"),
    ],
)
def test_values_that_are_not_finite(model, parts, tmp_path, name, bits, place):
    _, end = parts.table[name]["data_offsets"]
    parts.data = parts.data[: end - len(bits)] + bits + parts.data[end:]
    path = parts.write(tmp_path / "file")
    refused(model, path, "checksum")
    parts.sign()
    refused(model, parts.write(path), place, NonFiniteError)


def test_largest_finite_values_are_taken(model, parts, tmp_path):
    """Keys and values beyond the range of float16 were saturated, which is no damage."""
    _, end = parts.table["layers.3.keys"]["data_offsets"]
    parts.data = parts.data[: end - 2] + np.float16(65504).tobytes() + parts.data[end:]
    parts.sign()
    with model.load_session(parts.write(tmp_path / "file")) as session:
        assert np.isfinite(session.decode(1)).all()


@pytest.mark.parametrize("change", ["cut", "grown", "replaced"])
def test_a_file_that_changes_while_it_is_read(model, saved, tmp_path, monkeypatch, change):
    path = tmp_path / "file"
    path.write_bytes(saved.read_bytes())
    read = session_file.read_at
    calls = []

    def read_and_change(descriptor, offset, buffer):
        calls.append(1)
        if len(calls) == 5:
            if change == "cut":
                os.truncate(path, 20_000)
            elif change == "grown":
                with path.open("ab") as file:
                    file.write(b"more")
            else:
                (tmp_path / "other").write_bytes(b"other")
                (tmp_path / "other").replace(path)
        return read(descriptor, offset, buffer)

    monkeypatch.setattr(session_file, "read_at", read_and_change)
    if change == "cut":
        with pytest.raises(CheckpointError, match="cut short"):
            model.load_session(path)
    else:  # what was checked is what is read
        assert model.load_session(path).position == 40


def within_seconds(action: Callable[[], object]) -> None:
    """Fail rather than wait for ever, and as the action fails."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            action()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    if failures:
        raise failures[0]


def test_what_is_no_regular_file(model, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "link").symlink_to("/dev/zero")
    for name in ("pipe", "folder", "loop", "link", "/dev/zero", "/dev/stdin", "/proc/self/mem", "", "x" * 5000):
        within_seconds(lambda name=name: refused(model, tmp_path / name))
    within_seconds(lambda: refused(model, tmp_path / "a\0b", error=InvalidArgumentError))


def test_a_failed_save_leaves_nothing(model, tmp_path, monkeypatch):
    """Neither the file nor a part of it; an older one stays."""
    path = tmp_path / "file"
    with model.prefill([1, 2, 3]) as session:
        session.save(path)
        before = path.read_bytes()

        def fail(*_):
            raise OSError(errno.ENOSPC, "No space left on device")

        for name in ("os.fsync", "pathlib.Path.replace", "lily.session.session_file._write_all"):
            with monkeypatch.context() as patch:
                patch.setattr(name, fail)
                with pytest.raises(OSError, match="No space left"):
                    session.save(path)
            assert [file.name for file in tmp_path.iterdir()] == ["file"]
        with monkeypatch.context() as patch:
            patch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                session.save(path)
        assert [file.name for file in tmp_path.iterdir()] == ["file"]
        assert path.read_bytes() == before
        session.save(path)


def test_reads_without_the_newer_system_call(model, saved, monkeypatch):
    monkeypatch.delattr(os, "preadv", raising=False)
    monkeypatch.setattr(regular_file, "_PIECE_BYTES", 1000)
    assert model.load_session(saved).position == 40


def test_files_are_those_of_the_safetensors_library(model, saved):
    with safe_open(saved, framework="numpy") as stream:
        assert stream.metadata().keys() == {"lily", "sha256"}
        assert stream.get_tensor("tokens").shape == (40,)
        for name in stream.keys():  # noqa: SIM118
            assert stream.get_tensor(name).nbytes
    assert model.load_session(saved).position == 40


def test_mutations_are_refused_or_harmless(model, parts, tmp_path):
    """Random ones of the header's JSON: only our errors, in no time, and what is taken is the session."""
    random = np.random.default_rng(11)
    values = (None, -1, 0, 1, 1 << 40, 1.5, "", "x", [], {}, True, "F32", [0, 1], 1e308)
    expected = model.load_session(parts.write(tmp_path / "file")).tokens
    began, taken = time.monotonic(), 0
    for _ in range(300):
        table = json.loads(json.dumps(parts.table))
        for _ in range(random.integers(1, 3)):
            where = table
            while True:
                keys = list(where) if isinstance(where, dict) else list(range(len(where)))
                key = keys[random.integers(len(keys))] if keys else None
                if key is None or not isinstance(where[key], dict | list) or random.random() < 0.2:
                    break
                where = where[key]
            if key is not None:
                where[key] = values[random.integers(len(values))]
        changed = SessionParts.__new__(SessionParts)
        changed.table, changed.data = table, parts.data
        try:
            with model.load_session(changed.write(tmp_path / "file")) as session:
                assert session.tokens == expected
                taken += 1
        except (CheckpointError, ContextOverflowError):
            continue
    assert taken < 30 and time.monotonic() - began < 300
