"""The cache's directory: prompts start from it after a restart, and its failures cost only time."""

from __future__ import annotations

import os
import time

import pytest
from cache_helpers import assert_like_cold, greedy

from lily.errors import ConfigError

MIB = 1 << 20


def files(directory):
    return sorted(file for file in directory.iterdir() if not file.name.startswith("."))


def test_prompts_start_from_the_directory_after_a_restart(load, prompt, tmp_path):
    ids = prompt(300).tolist()
    first = load(prefix_cache_dir=tmp_path / "cache")
    session = first.cached_session(ids, snapshot_at=[120])
    expected = greedy(session, 10)
    first.close()
    # One file: what lies on the way to a single longer prompt is not written.
    assert len(files(tmp_path / "cache")) == 1
    second = load(prefix_cache_dir=tmp_path / "cache")
    assert second.cache.stats().files == 1 and len(second.cache) == 0
    assert second.cache.explain([*ids, 5]).recompute_tokens == 1
    again = second.cached_session(ids)
    assert again.cached_tokens == 300
    assert greedy(again, 10) == expected
    longer = second.cached_session([*ids, *prompt(20)])
    assert longer.cached_tokens == 300
    assert_like_cold(second, longer)
    assert second.cache.stats().snapshots == 2


def test_shared_prefixes_are_written(load, prompt, tmp_path):
    system = prompt(150)
    model = load(prefix_cache_dir=tmp_path)
    for _ in range(2):
        model.cached_session([*system, *prompt(80)], snapshot_at=[150])
    model.close()
    assert len(files(tmp_path)) == 3
    other = load(prefix_cache_dir=tmp_path)
    session = other.cached_session([*system, *prompt(80)])
    assert session.cached_tokens == 150
    assert_like_cold(other, session)


def test_dropped_snapshots_go_to_the_directory_and_come_back(load, prompt, tmp_path):
    model = load(prefix_cache_dir=tmp_path, prefix_cache_bytes=5 * MIB)
    prompts = [prompt(100) for _ in range(6)]
    for ids in prompts:
        model.cached_session(ids)
    assert model.cache.stats().evictions == len(files(tmp_path)) == model.cache.stats().files > 2
    for ids in prompts:
        session = model.cached_session(ids)
        assert session.cached_tokens == 100
        assert_like_cold(model, session, 3)
        assert model.cache.stats().bytes <= 5 * MIB


def test_limit_of_the_directory(load, prompt, tmp_path):
    model = load(prefix_cache_dir=tmp_path, prefix_cache_bytes=5 * MIB, prefix_cache_disk_bytes=7 * MIB)
    for _ in range(12):
        model.cached_session(prompt(100))
        assert sum(file.stat().st_size for file in files(tmp_path)) == model.cache.stats().file_bytes <= 7 * MIB
    last = prompt(100)
    model.cached_session(last)
    model.close()
    assert 1 <= len(files(tmp_path)) <= 4
    assert load(prefix_cache_dir=tmp_path).cached_session(last).cached_tokens == 100


def test_short_gains_are_computed(load, prompt, tmp_path):
    ids = prompt(40)
    load(prefix_cache_dir=tmp_path).cached_session(ids).model.close()
    model = load(prefix_cache_dir=tmp_path)
    assert model.cache.stats().files == 1
    assert model.cache.explain(ids).cached_tokens == model.cached_session(ids).cached_tokens == 0


def test_damaged_and_foreign_files(load, prompt, tmp_path):
    ids = prompt(200)
    model = load(prefix_cache_dir=tmp_path)
    model.cached_session(ids)
    model.close()
    (file,) = files(tmp_path)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "other.lily-session").write_bytes(b"nothing")
    hidden = [tmp_path / name for name in (".abandoned.partial", ".bashrc", ".env", ".netrc")]
    for path in hidden:
        path.write_text("mine")
        os.utime(path, (time.time() - 7200,) * 2)
    model = load(prefix_cache_dir=tmp_path)
    assert model.cache.stats().files == 1
    session = model.cached_session(ids)
    assert session.cached_tokens == 0
    assert_like_cold(model, session)
    assert not file.exists()
    assert all(path.read_text() == "mine" for path in hidden)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    model.close()
    assert load(prefix_cache_dir=tmp_path).cached_session(ids).cached_tokens == 200


def test_files_of_another_cache_type_are_left_alone(load, prompt, tmp_path):
    ids = prompt(200)
    load(prefix_cache_dir=tmp_path).cached_session(ids).model.close()
    other = load(prefix_cache_dir=tmp_path, kv_cache_type="bfloat16")
    session = other.cached_session(ids)
    assert session.cached_tokens == 0
    assert_like_cold(other, session)
    other.close()
    assert len(files(tmp_path)) == 2


def test_a_directory_that_fails_costs_no_request(load, prompt, tmp_path, caplog):
    directory = tmp_path / "cache"
    model = load(prefix_cache_dir=directory, prefix_cache_bytes=3 * MIB)
    model.cached_session(prompt(100))
    for file in directory.iterdir():
        file.unlink()
    directory.rmdir()
    for _ in range(3):
        assert_like_cold(model, model.cached_session(prompt(100)), 3)
    model.close()
    assert "cannot write" in caplog.text


def test_a_directory_that_cannot_be_is_named(load, tmp_path):
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match=r"prefix_cache_dir: .*file"):
            load(prefix_cache_dir=path)


def test_directory_without_a_cache_is_refused(load, tmp_path):
    with pytest.raises(ConfigError, match="prefix_cache_dir"):
        load(prefix_cache_dir=tmp_path, prefix_cache_bytes=0)
