"""The identity of weights: every byte counts, every file is hashed once, and nobody waits for it without need."""

from __future__ import annotations

import json
import os
import shutil
import stat
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from lily import Model
from lily.cache import disk_writer, snapshot_store
from lily.checkpoint import read_checkpoint
from lily.errors import CancelledError, CheckpointError
from lily.files import file_digest
from lily.files.file_digest import FileStamp
from lily.identity import digest_records, fingerprint
from lily.identity.digest_records import DigestRecords
from lily.identity.fingerprint import WeightsIdentity
from lily_tiny import CHECKPOINT
from synthetic import Options, random_config, write_checkpoint


@pytest.fixture
def small(tmp_path) -> Path:
    """A quantized checkpoint of several files, to be changed."""
    config = random_config(np.random.default_rng(4))
    return write_checkpoint(tmp_path / "small", config, Options(seed=4, shards=3, group_size=32))


@pytest.fixture
def records(tmp_path) -> DigestRecords:
    return DigestRecords(tmp_path / "records")


@pytest.fixture
def settled(monkeypatch):
    """Files count as unchanged for long."""
    monkeypatch.setattr(digest_records, "_SETTLED_NS", -1)


@pytest.fixture
def hashed(monkeypatch) -> list[str]:
    """Names of the files that were hashed."""
    names: list[str] = []
    digest = fingerprint.file_digest

    def counting(path, threads, stopped):
        names.append(path.name)
        return digest(path, threads, stopped)

    monkeypatch.setattr(fingerprint, "file_digest", counting)
    return names


def identity(directory: Path, records: DigestRecords) -> str:
    return WeightsIdentity(read_checkpoint(directory), records).get()


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        (value,) = file.read(1)
        file.seek(offset)
        file.write(bytes([value ^ 16]))


def tensor_bytes(directory: Path) -> list[tuple[Path, int]]:
    """(file, offset) of places within tensors of every kind, at their edges and inside."""
    source = read_checkpoint(directory).source
    places = [(vector.file, vector.offset, vector.total_bytes) for vector in source.vectors]
    for matrix in source.matrices:
        part = matrix.parts[-1]
        pieces = (part.weight, part.scales, part.biases)
        places += [(one.file, one.offset, one.stride * part.count) for one in pieces if one.stride]
    random = np.random.default_rng(8)
    chosen = [places[index] for index in random.permutation(len(places))[:40]]
    return [(Path(source.files[file]), offset + int(random.integers(0, size))) for file, offset, size in chosen]


def test_every_byte_counts(small, records):
    before = identity(small, records)
    seen = {before}
    for path, offset in tensor_bytes(small):
        flip(path, offset)
        seen.add(identity(small, records))
        flip(path, offset)
    assert len(seen) == 41
    assert identity(small, records) == before


def test_a_changed_row_is_refused_by_files_and_missed_by_the_cache(small, tmp_path):
    ids = list(range(80))
    with Model.load(small, threads=1, prefix_cache_dir=tmp_path / "cache") as model:
        model.cached_session(ids).save(tmp_path / "state")
    with Model.load(small, threads=1, prefix_cache_dir=tmp_path / "cache") as model:
        assert model.cached_session(ids).cached_tokens == 80
        assert model.load_session(tmp_path / "state").position == 80
    source = read_checkpoint(small).source
    weight = next(matrix for matrix in source.matrices if matrix.name == "embed_tokens").parts[0].weight
    flip(Path(source.files[weight.file]), weight.offset + 1000)
    with Model.load(small, threads=1, prefix_cache_dir=tmp_path / "cache") as model:
        assert model.cached_session(ids).cached_tokens == 0
        with pytest.raises(CheckpointError, match="its weights are not"):
            model.load_session(tmp_path / "state")


def test_copies_are_the_same_and_neither_threads_nor_pieces_matter(small, records, tmp_path, monkeypatch):
    expected = identity(small, records)
    copy = Path(shutil.copytree(small, tmp_path / "copy"))
    assert identity(copy, records) == expected
    for threads in (1, 2, 7):
        assert WeightsIdentity(read_checkpoint(copy), records).get(threads=threads) == expected
    file = max(small.glob("*.safetensors"), key=lambda path: path.stat().st_size)
    monkeypatch.setattr(file_digest, "PIECE_BYTES", 1000)
    digests = {file_digest.file_digest(file, threads, lambda: False)[1] for threads in (1, 3, 8)}
    assert len(digests) == 1


def test_no_file_is_hashed_twice(small, records, settled, hashed):
    first = identity(small, records)
    assert len(hashed) == 3
    again = WeightsIdentity(read_checkpoint(small), DigestRecords(records._path.parent))
    assert again.recorded() == again.get() == first
    assert len(hashed) == 3
    # One that was touched is hashed again, the others are not; a change that keeps size and time is noticed too.
    os.utime(small / hashed[0], (1, 1))
    assert identity(small, records) == first and hashed[3:] == hashed[:1]
    status = (small / hashed[1]).stat()
    flip(small / hashed[1], status.st_size - 1)
    os.utime(small / hashed[1], ns=(status.st_atime_ns, status.st_mtime_ns))
    assert identity(small, records) != first and hashed[4:] == hashed[1:2]


def test_a_file_that_was_just_changed_is_not_recorded(small, records, hashed):
    identity(small, records)
    identity(small, records)
    assert len(hashed) == 6
    assert not records._path.exists()


def test_the_bundled_model_is_hashed_once(records, hashed):
    assert time.time() - (CHECKPOINT / "config.json").stat().st_ctime > 5
    assert identity(CHECKPOINT, records) == identity(CHECKPOINT, records)
    assert len(hashed) == len(read_checkpoint(CHECKPOINT).source.files)


HEAD = '{"format": "lily weight digests 1", "files": {'


@pytest.mark.parametrize(
    "content",
    [
        HEAD,
        HEAD + '"a": 1}}',
        HEAD + "[" * 100_000,
        HEAD + '"a": [1, 2, 3, 4, 5, "x"]}, "files": []}',
        HEAD + "}}" + " " * (5 << 20),
        HEAD + '"a": [NaN, 1, 1, 1, 1, 1]}}',
    ],
)
def test_damaged_records_are_made_anew(small, records, settled, hashed, content):
    first = identity(small, records)
    records._path.write_text(content)
    assert identity(small, records) == first
    assert len(hashed) == 6
    assert identity(small, records) == first
    assert len(hashed) == 6
    assert stat.S_IMODE(records._path.stat().st_mode) == 0o600


def test_records_of_the_wrong_form_are_not_believed(small, records, settled, hashed):
    """A record for another file of the same name, and values of other types."""
    first = identity(small, records)
    good = json.loads(records._path.read_text())
    for change in (
        lambda record: [*record[:5], "0" * 63],
        lambda record: [*record[:5], "G" * 64],
        lambda record: [str(number) for number in record],
        lambda record: [*record[:2], float(record[2]), *record[3:]],
        lambda record: [record[0], record[1] + 1, *record[2:]],
        lambda record: record[:5],
        lambda record: {"0": record},
    ):
        changed = {path: change(record) for path, record in good["files"].items()}
        records._path.write_text(json.dumps({**good, "files": changed}))
        before = len(hashed)
        assert identity(small, records) == first
        assert len(hashed) == before + 3


def test_files_that_are_not_lilys_stay(small, tmp_path, settled):
    """In whatever folder the environment names."""
    for make in (
        lambda path: path.write_text("mine"),
        lambda path: path.write_text('{"format": "other"}'),
        lambda path: path.mkdir(),
        os.mkfifo,
        lambda path: path.symlink_to(small / "config.json"),
    ):
        folder = tmp_path / "folder"
        folder.mkdir()
        (folder / ".env").write_text("mine")
        path = folder / "weight-digests.json"
        make(path)
        before = path.lstat()
        assert identity(small, DigestRecords(folder)) == identity(small, DigestRecords(folder))
        now = path.lstat()
        assert (now.st_ino, now.st_mode, now.st_size, now.st_mtime_ns) == (
            before.st_ino,
            before.st_mode,
            before.st_size,
            before.st_mtime_ns,
        )
        assert sorted(os.listdir(folder)) == [".env", "weight-digests.json"]  # noqa: PTH208
        shutil.rmtree(folder)


def test_what_killed_processes_had_begun_is_removed(small, records, settled):
    """By name and beginning, as everything that Lily removes."""
    folder = records._path.parent
    folder.mkdir()
    dead = 4_000_000  # no system has a process of that number
    begun = [f".weight-digests.json.{dead}-0000000{index}.partial" for index in range(3)]
    for name, content in zip(begun, ("", HEAD, HEAD + '"a": ['), strict=True):
        (folder / name).write_text(content)
    foreign = {
        f".weight-digests.json.{dead}-00000003.partial": "mine",
        f".weight-digests.json.{os.getpid()}-00000000.partial": HEAD,
        f".weight-digests.json.{dead}.partial": HEAD,
        f".other.json.{dead}-00000000.partial": "",
    }
    for name, content in foreign.items():
        (folder / name).write_text(content)
    identity(small, records)
    assert {path.name for path in folder.iterdir()} == {"weight-digests.json", *foreign}


def test_records_that_others_may_write_are_not_believed(small, records, settled, hashed):
    identity(small, records)
    records._path.chmod(0o666)
    identity(small, records)
    assert len(hashed) == 6


@pytest.mark.parametrize("unwritable", ["file", "nowhere"])
def test_a_folder_that_cannot_be_written_is_no_error(small, tmp_path, settled, unwritable):
    (tmp_path / "file").write_text("x")
    folder = tmp_path / "file" / "folder" if unwritable == "file" else Path("/proc/nowhere")
    assert identity(small, DigestRecords(folder)) == identity(small, DigestRecords(folder))


def test_the_folder_is_the_users(monkeypatch, tmp_path):
    monkeypatch.setenv("LILY_CACHE_DIR", str(tmp_path / "own"))
    assert DigestRecords()._path == tmp_path / "own" / "weight-digests.json"
    monkeypatch.delenv("LILY_CACHE_DIR")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert DigestRecords()._path == Path("/home/somebody/.cache/lily/weight-digests.json")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert DigestRecords()._path == Path("/caches/lily/weight-digests.json")
    monkeypatch.setattr("sys.platform", "darwin")
    assert DigestRecords()._path == Path("/home/somebody/Library/Caches/lily/weight-digests.json")
    monkeypatch.delenv("HOME")
    assert DigestRecords()._path is None


@pytest.mark.parametrize("change", ["overwritten", "grown", "replaced"])
def test_a_file_that_changes_while_it_is_hashed(small, records, settled, monkeypatch, change):
    read_at = file_digest.read_at
    path = max(small.glob("*.safetensors"))
    known = WeightsIdentity(read_checkpoint(small), records)

    def read_and_change(descriptor, offset, buffer):
        found = read_at(descriptor, offset, buffer)
        if change == "overwritten":
            flip(path, path.stat().st_size - 1)
        elif change == "grown":
            with path.open("ab") as file:
                file.write(b"x")
        else:
            shutil.copy(path, small / "copy")
            (small / "copy").replace(path)
        return found

    monkeypatch.setattr(file_digest, "read_at", read_and_change)
    with pytest.raises(CheckpointError, match="changed while it was read"):
        file_digest.file_digest(path, 1, lambda: False)
    with pytest.raises(CheckpointError, match="changed"):
        known.get()
    assert not records._path.exists() or path.name not in records._path.read_text()


def test_files_that_are_gone_or_cut_short(small, records):
    known = WeightsIdentity(read_checkpoint(small), records)
    file = max(small.glob("*.safetensors"))
    os.truncate(file, file.stat().st_size - 5)
    with pytest.raises(CheckpointError, match="changed after the model was loaded"):
        known.get()
    file.unlink()
    with pytest.raises(CheckpointError, match="cannot be read"):
        known.get()


def test_a_stop_ends_all_threads(small, monkeypatch):
    monkeypatch.setattr(file_digest, "PIECE_BYTES", 500)
    file = max(small.glob("*.safetensors"), key=lambda path: path.stat().st_size)
    pieces = file.stat().st_size // 500
    for error in (KeyboardInterrupt, CancelledError):
        calls: list[int] = []

        def stopped(error=error, calls=calls):
            calls.append(1)
            if threading.current_thread() is threading.main_thread() or (error is CancelledError and len(calls) > 9):
                raise error
            time.sleep(0.001)
            return False

        with pytest.raises(error):
            file_digest.file_digest(file, 4, stopped)
        assert not [thread for thread in threading.enumerate() if thread.name == "lily-hash"]
        assert len(calls) < pieces // 2


def test_a_stamp_of_a_link_is_that_of_its_file(small, records, settled, hashed, tmp_path):
    """As in the Hub's cache, where a snapshot links to blobs."""
    links = tmp_path / "links"
    links.mkdir()
    for file in small.iterdir():
        (links / file.name).symlink_to(file)
    assert identity(links, records) == identity(small, records)
    assert len(hashed) == 3


# -- who waits for it


def test_loading_and_computing_hash_nothing(monkeypatch):
    def fail(*_):
        raise AssertionError("hashed without need")

    monkeypatch.setattr(fingerprint, "file_digest", fail)
    monkeypatch.setattr(DigestRecords, "find", fail)
    with Model.load(CHECKPOINT, threads=1) as model, model.cached_session([1, 2, 3]) as session:
        session.decode(4)
        model.cache.insert(session)
        session.snapshot()


class SlowHash:
    """Hashing that goes on until it is let go, as that of many gigabytes."""

    def __init__(self, monkeypatch) -> None:
        self.began, self.go_on = threading.Event(), threading.Event()
        self._digest = fingerprint.file_digest
        monkeypatch.setattr(fingerprint, "file_digest", self)
        monkeypatch.setattr(snapshot_store, "_QUICK_HASH_BYTES", 0)

    def __call__(self, path, threads, stopped) -> tuple[FileStamp, str]:
        self.began.set()
        while not self.go_on.wait(0.005):
            if stopped():
                raise CancelledError("stopped")
        return self._digest(path, threads, stopped)


def test_loading_does_not_wait_for_a_first_hash(small, tmp_path, monkeypatch):
    slow = SlowHash(monkeypatch)
    ids = list(range(80))
    with Model.load(small, threads=1, prefix_cache_dir=tmp_path / "cache") as model:
        assert slow.began.wait(60)
        assert model.cached_session(ids).cached_tokens == 0
        assert model.cached_session(ids).cached_tokens == 80
        assert not model.cache.flush(0.01)
        slow.go_on.set()
        assert model.cache.flush(60)
        assert model.cache.stats().files == 1
    monkeypatch.undo()
    with Model.load(small, threads=1, prefix_cache_dir=tmp_path / "cache") as model:
        assert model.cached_session(ids).cached_tokens == 80


def test_closing_does_not_wait_for_a_long_hash(small, tmp_path, monkeypatch):
    monkeypatch.setattr(disk_writer, "_CLOSING_HASH_SECONDS", 0.1)
    slow = SlowHash(monkeypatch)
    model = Model.load(small, threads=1, prefix_cache_dir=tmp_path / "cache")
    assert slow.began.wait(60)
    model.cached_session(list(range(80)))
    began = time.monotonic()
    model.close()
    assert time.monotonic() - began < 30
    assert not [thread for thread in threading.enumerate() if thread.name == "lily-cache-writer"]
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_recorded_identity_attaches_at_once(small, tmp_path, monkeypatch, settled):
    monkeypatch.setenv("LILY_CACHE_DIR", str(tmp_path / "records"))
    ids = list(range(80))
    with Model.load(small, threads=1, prefix_cache_dir=tmp_path / "cache") as model:
        model.cached_session(ids).close()
    slow = SlowHash(monkeypatch)
    with Model.load(small, threads=1, prefix_cache_dir=tmp_path / "cache") as model:
        assert model.cache.stats().files == 1
        assert model.cached_session(ids).cached_tokens == 80
    assert not slow.began.is_set()
