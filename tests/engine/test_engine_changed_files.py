"""Files that change under a model, while it is loaded or later: an error that names the file, never a wrong result."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import lily
from engine_helpers import in_chunks, random_ids
from lily import _core
from lily.checkpoint import Checkpoint, read_checkpoint
from lily.errors import CheckpointError
from lily.model.native import native_config, native_source

SHARD = "model-00002-of-00002.safetensors"


@pytest.fixture
def directory(checkpoint: Path, tmp_path: Path) -> Path:
    """A copy of the small model that a test may damage."""
    copy = Path(shutil.copytree(checkpoint, tmp_path / "copy"))
    time.sleep(0.02)  # longer than the steps of a file system's clock
    return copy


def overwrite(path: Path) -> None:
    """Change content in place, in its last bytes; the size stays."""
    with path.open("r+b") as file:
        file.seek(-64, os.SEEK_END)
        file.write(b"\x55" * 64)


def overwrite_secretly(path: Path) -> None:
    status = path.stat()
    overwrite(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


CHANGES: list[tuple[Callable[[Path], None], str]] = [
    (truncate, "was cut from"),
    (append, "grew from"),
    (overwrite, "was written to"),
    (overwrite_secretly, "set back"),
]
CALLS: list[Callable[[lily.Session], object]] = [
    lambda session: session.prefill(random_ids(20)),
    lambda session: session.decode(3),
    lambda session: next(session.generate(max_tokens=1, stop_tokens=())),
    lambda session: session.score(random_ids(20)),
]


@pytest.mark.parametrize("call", CALLS, ids=["prefill", "decode", "generate", "score"])
@pytest.mark.parametrize(("change", "what"), CHANGES, ids=["cut", "grown", "overwritten", "time set back"])
def test_every_call_notices(
    directory: Path, change: Callable[[Path], None], what: str, call: Callable[[lily.Session], object]
) -> None:
    with lily.Model.load(directory, threads=1) as model, model.session() as session:
        session.prefill(random_ids(9))
        change(directory / SHARD)
        for _ in range(2):
            with pytest.raises(CheckpointError) as caught:
                call(session)
            for fragment in (str(directory / SHARD), what, "load it again"):
                assert fragment in str(caught.value)
        assert session.position == 9
        session.snapshot().close()  # what was computed before is right, and can be kept


@pytest.mark.parametrize("score", [False, True])
def test_noticed_between_chunks(directory: Path, score: bool) -> None:
    """The next chunk would touch pages that are no longer there."""
    with lily.Model.load(directory, threads=1, prefill_chunk=16) as model, model.session() as session:
        progress = in_chunks(lambda done, total: os.truncate(directory / SHARD, 4096), 2)
        call = session.score if score else session.prefill
        with pytest.raises(CheckpointError, match="was cut from"):
            call(random_ids(64), progress=progress)
        assert session.position == (0 if score else 32)


def test_a_generation_in_progress_notices(directory: Path) -> None:
    with lily.Model.load(directory, threads=1) as model, model.session() as session:
        session.prefill(random_ids(9))
        generation = session.generate(max_tokens=50, stop_tokens=())
        next(generation)
        overwrite(directory / SHARD)
        with pytest.raises(CheckpointError, match="was written to"):
            next(generation)


def replace_by_another(path: Path) -> None:
    other = path.with_suffix(".new")
    other.write_bytes(bytes(path.stat().st_size))
    other.replace(path)


HARMLESS: list[Callable[[Path], object]] = [
    lambda path: path.unlink(),
    lambda path: path.rename(path.with_suffix(".moved")),
    lambda path: path.parent.rename(path.parent.with_name("moved")),
    lambda path: path.chmod(0o600),
    lambda path: path.with_suffix(".link").hardlink_to(path),
    lambda path: path.read_bytes(),
    replace_by_another,
]


@pytest.mark.parametrize("happens", HARMLESS, ids=["removed", "renamed", "moved", "mode", "linked", "read", "replaced"])
def test_what_leaves_the_content_alone_does_not_matter(
    directory: Path, model: lily.Model, happens: Callable[[Path], object]
) -> None:
    with lily.Model.load(directory, threads=1, prefill_chunk=16) as loaded, loaded.session() as session:
        session.prefill(random_ids(9))
        happens(directory / SHARD)
        with model.session() as expected:
            expected.prefill(random_ids(9))
            assert np.array_equal(session.decode(5), expected.decode(5))


def test_a_name_that_is_no_text_can_be_named(directory: Path) -> None:
    (directory / "model.safetensors.index.json").unlink()
    first = directory / SHARD.replace("00002-of", "00001-of")
    odd = directory / os.fsdecode(b"model\xff\n.safetensors")
    (directory / SHARD).rename(odd)
    first.rename(directory / "model-other.safetensors")
    with lily.Model.load(directory, threads=1) as model, model.session() as session:
        session.prefill(random_ids(9))
        os.truncate(odd, 4096)
        with pytest.raises(CheckpointError) as caught:
            session.decode(1)
    assert "\\xff?.safetensors: was cut from" in str(caught.value)
    str(caught.value).encode()  # printable on any terminal


# While loading: the core compares what it maps with what the reader of headers saw.


def load_natively(checkpoint: Checkpoint, weights: str) -> _core.Model:
    options = _core.EngineOptions()
    options.threads = 1
    options.weights = weights
    return _core.Model(native_config(checkpoint.config), native_source(checkpoint.source), options)


@pytest.mark.parametrize("weights", ["mmap", "read"])
@pytest.mark.parametrize(
    ("change", "what"),
    [*CHANGES, (replace_by_another, "was replaced by another file")],
    ids=["cut", "grown", "overwritten", "time set back", "replaced"],
)
def test_swapped_between_header_and_mapping(
    directory: Path, change: Callable[[Path], None], what: str, weights: str
) -> None:
    checkpoint = read_checkpoint(directory)
    load_natively(checkpoint, weights)
    change(directory / SHARD)
    with pytest.raises(CheckpointError) as caught:
        load_natively(checkpoint, weights)
    for fragment in (str(directory / SHARD), what, "while the model was loaded"):
        assert fragment in str(caught.value)


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(directory: Path) -> None:
    checkpoint = read_checkpoint(directory)
    (directory / SHARD).unlink()
    os.mkfifo(directory / SHARD)
    with pytest.raises(CheckpointError, match="no longer a regular file"):
        load_natively(checkpoint, "mmap")


def test_weights_that_were_read_do_not_need_their_files(directory: Path, model: lily.Model) -> None:
    with lily.Model.load(directory, threads=1, weights="read", prefill_chunk=16) as loaded, loaded.session() as session:
        for name in (SHARD, SHARD.replace("00002-of", "00001-of")):
            truncate(directory / name)
        with model.session() as expected:
            assert np.array_equal(session.prefill(random_ids(40)), expected.prefill(random_ids(40)))


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc to see that the file is open")
@pytest.mark.parametrize("change", [truncate, overwrite], ids=["cut", "overwritten"])
def test_changed_while_it_is_read(directory: Path, change: Callable[[Path], None]) -> None:
    shard = directory / SHARD
    os.truncate(shard, 400 << 20)  # sparse: long to read, but takes no space
    time.sleep(0.02)
    checkpoint = read_checkpoint(directory)

    def is_open() -> bool:
        for entry in Path("/proc/self/fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                if entry.readlink() == shard:
                    return True
        return False

    def change_when_open() -> None:
        while not is_open():
            pass
        change(shard)

    thread = threading.Thread(target=change_when_open)
    thread.start()
    try:
        with pytest.raises(CheckpointError, match=SHARD):
            load_natively(checkpoint, "read")
    finally:
        thread.join()
