"""Weights that are replaced or changed under a loaded model: their hash is never taken for that of the loaded ones."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from cache_helpers import session_files

from lily import Model
from lily.cache import snapshot_store
from lily.checkpoint import read_checkpoint
from lily.errors import CheckpointError
from lily.identity import digest_records, fingerprint
from lily.identity.digest_records import DigestRecords
from lily.identity.fingerprint import WeightsIdentity
from synthetic import Options, random_config, write_checkpoint

IDS = list(range(80))


@pytest.fixture
def weights(tmp_path) -> Path:
    """The one file of a small checkpoint."""
    config = random_config(np.random.default_rng(4))
    directory = write_checkpoint(tmp_path / "small", config, Options(seed=4, group_size=32))
    (file,) = directory.glob("*.safetensors")
    return file


@pytest.fixture
def recorded(monkeypatch, tmp_path) -> None:
    """Hashes are recorded whatever the files' age, in a folder of the test's own."""
    monkeypatch.setattr(digest_records, "_SETTLED_NS", -1)
    monkeypatch.setenv("LILY_CACHE_DIR", str(tmp_path / "records"))


def changed(file: Path) -> bytes:
    content = bytearray(file.read_bytes())
    content[-100] ^= 1
    return bytes(content)


def rename(file: Path) -> None:
    """As a download does."""
    other = file.with_suffix(".new")
    other.write_bytes(changed(file))
    other.replace(file)


def rename_with_its_times(file: Path) -> None:
    """As rsync and cp -p do."""
    status = file.stat()
    rename(file)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def overwrite(file: Path) -> None:
    content = changed(file)
    with file.open("r+b") as stream:
        stream.write(content)
    os.utime(file)


def overwrite_and_set_back(file: Path) -> None:
    status = file.stat()
    overwrite(file)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


CHANGES = [rename, rename_with_its_times, overwrite, overwrite_and_set_back, Path.unlink]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("access", ["mmap", "read"])
def test_no_state_is_saved_under_the_hash_of_another_file(weights, tmp_path, access, change: Callable[[Path], object]):
    with Model.load(weights.parent, threads=1, weights=access) as model, model.prefill(IDS) as session:
        change(weights)
        for use in (lambda: session.save(tmp_path / "state"), lambda: model.load_session(tmp_path / "state")):
            with pytest.raises(CheckpointError):
                use()
        with pytest.raises(CheckpointError, match=r"neither saved nor loaded; load the model again"):
            session.save(tmp_path / "state")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small"]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("first", [False, True])
def test_a_hash_that_is_known_stays_that_of_the_loaded_file(weights, tmp_path, recorded, change, first):
    """From this model's first save, or recorded by an earlier process."""
    if not first:
        WeightsIdentity(read_checkpoint(weights.parent)).get()
    with Model.load(weights.parent, threads=1, weights="read") as model, model.prefill(IDS) as session:
        if first:
            session.save(tmp_path / "first")
        content = weights.read_bytes()
        change(weights)
        session.save(tmp_path / "state")
        assert model.load_session(tmp_path / "state").position == len(IDS)
    if weights.exists():
        with (
            Model.load(weights.parent, threads=1) as model,
            pytest.raises(CheckpointError, match="its weights are not"),
        ):
            model.load_session(tmp_path / "state")
    weights.write_bytes(content)
    with Model.load(weights.parent, threads=1) as model:
        assert model.load_session(tmp_path / "state").position == len(IDS)


def test_a_record_of_the_file_that_came_later_is_not_taken(weights, recorded):
    loaded = WeightsIdentity(read_checkpoint(weights.parent))
    rename(weights)
    assert WeightsIdentity(read_checkpoint(weights.parent)).get()
    assert loaded.recorded() is None
    with pytest.raises(CheckpointError, match="replaced by another file"):
        loaded.get()


@pytest.mark.parametrize("change", [rename, overwrite, overwrite_and_set_back])
def test_a_file_that_is_replaced_while_it_is_looked_at(weights, tmp_path, monkeypatch, change):
    """Between the look at it and its hashing."""
    digest = fingerprint.file_digest

    def change_first(path, threads, stopped):
        change(path)
        return digest(path, threads, stopped)

    known = WeightsIdentity(read_checkpoint(weights.parent), DigestRecords(tmp_path / "records"))
    monkeypatch.setattr(fingerprint, "file_digest", change_first)
    with pytest.raises(CheckpointError, match="changed after the model was loaded"):
        known.get()


@pytest.mark.parametrize("change", [lambda file: file.chmod(0o400), lambda file: (file.parent / "x").hardlink_to(file)])
def test_attributes_and_links_are_no_change(weights, tmp_path, change):
    with Model.load(weights.parent, threads=1) as model, model.prefill(IDS) as session:
        change(weights)
        session.save(tmp_path / "state")
    with Model.load(weights.parent, threads=1) as model:
        assert model.load_session(tmp_path / "state").position == len(IDS)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("large", [False, True])
def test_the_directory_is_not_used_and_that_is_told_once(weights, tmp_path, monkeypatch, caplog, change, large):
    """Whether the weights are hashed while the model is loaded or behind it."""
    caplog.set_level(logging.WARNING, "lily")
    monkeypatch.setattr(snapshot_store, "_QUICK_HASH_BYTES", 0 if large else 1 << 40)
    get = WeightsIdentity.get

    def change_first(self: WeightsIdentity, **options) -> str:
        if not changes:
            changes.append(weights)
            change(weights)
        return get(self, **options)

    changes: list[Path] = []
    monkeypatch.setattr(WeightsIdentity, "get", change_first)
    with Model.load(weights.parent, threads=1, weights="read", prefix_cache_dir=tmp_path / "cache") as model:
        model.cached_session(IDS).close()
        assert not model.cache.flush(60)
        with model.cached_session(IDS) as session:
            assert session.cached_tokens == len(IDS)  # memory serves
    assert [record.message.split(":")[0] for record in caplog.records] == ["the prefix cache's directory is not used"]
    assert not session_files(tmp_path / "cache")
