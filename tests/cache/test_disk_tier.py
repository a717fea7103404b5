"""The cache's directory: prompts start from it after a restart, and its failures cost only time."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import threading
import time
import weakref
from pathlib import Path

import pytest
from cache_helpers import assert_like_cold, greedy, session_files

from lily.cache import disk_tier, disk_writer
from lily.cache.own_files import CacheDirectory
from lily.errors import CancelledError, ConfigError, MemoryLimitError

MIB = 1 << 20


def cached(model, ids, **options):
    """Number of leading ids that came from the cache."""
    with model.cached_session(ids, **options) as session:
        return session.cached_tokens


def test_prompts_start_from_the_directory_after_a_restart(load, prompt, tmp_path):
    ids = prompt(300).tolist()
    first = load(prefix_cache_dir=tmp_path / "cache")
    session = first.cached_session(ids, snapshot_at=[120])
    expected = greedy(session, 10)
    first.close()
    # Both: another prompt may leave this one behind its first part.
    assert len(session_files(tmp_path / "cache")) == 2
    second = load(prefix_cache_dir=tmp_path / "cache")
    assert second.cache.stats().files == 2 and len(second.cache) == 0
    assert second.cache.explain([*ids, 5]).recompute_tokens == 1
    again = second.cached_session(ids)
    assert again.cached_tokens == 300
    assert greedy(again, 10) == expected
    longer = second.cached_session([*ids, *prompt(20)])
    assert longer.cached_tokens == 300
    assert_like_cold(second, longer)
    assert second.cache.stats().snapshots == 2
    other = second.cached_session([*ids[:120], *prompt(30)])
    assert other.cached_tokens == 120
    assert_like_cold(second, other)


def test_chats_that_part_behind_the_end_of_their_system_prompt(load, prompt, tmp_path):
    """The template's next tokens are the same for all, so that the snapshot has one child in the tree."""
    system, border = prompt(425), prompt(3)
    chats = [[*system, *border, *prompt(20 + index)] for index in range(4)]
    model = load(prefix_cache_dir=tmp_path)
    for ids in chats:
        model.cached_session(ids, snapshot_at=[425, len(ids) - 4]).close()
    model.close()
    other = load(prefix_cache_dir=tmp_path)
    assert cached(other, [*system, *border, *prompt(30)], snapshot_at=[425]) == 425
    assert [cached(other, ids) for ids in chats] == [len(ids) for ids in chats]
    assert cached(other, [*chats[0][:-4], *prompt(50)]) == len(chats[0]) - 4


def test_a_branch_that_nobody_named_is_seen_over_a_restart(load, prompt, tmp_path):
    """The second prompt leaves the first one's file there, and takes a snapshot for the third."""
    shared = prompt(300)
    found = []
    for index in range(3):
        model = load(prefix_cache_dir=tmp_path)
        found.append(cached(model, [*shared, 1 + index, *prompt(40)]))
        model.close()
    assert found == [0, 0, 300]


def test_shared_prefixes_are_written(load, prompt, tmp_path):
    system = prompt(150)
    model = load(prefix_cache_dir=tmp_path)
    for _ in range(2):
        model.cached_session([*system, *prompt(80)], snapshot_at=[150])
    model.close()
    assert len(session_files(tmp_path)) == 3
    other = load(prefix_cache_dir=tmp_path)
    session = other.cached_session([*system, *prompt(80)])
    assert session.cached_tokens == 150
    assert_like_cold(other, session)


def test_of_a_long_sequence_the_latest_snapshots_are_written(load, prompt, tmp_path, monkeypatch):
    """And the first. Nobody comes back to the others."""
    monkeypatch.setattr(disk_writer, "_IDLE_SECONDS", 1e6)
    monkeypatch.setattr(disk_writer, "_MOST_SECONDS", 1e6)
    model = load(prefix_cache_dir=tmp_path)
    ids = prompt(700).tolist()
    model.cached_session(ids, snapshot_at=range(50, 700, 50)).close()
    model.close()
    other = load(prefix_cache_dir=tmp_path)
    reached = [other.cache.explain([*ids[:end], 4095]).cached_tokens for end in range(50, 701, 50)]
    assert reached == [*[0] * 10, 550, 600, 650, 700]
    assert len(session_files(tmp_path)) == 5  # the first, of 50 tokens, is too short to be read for itself


def test_written_behind_the_requests(load, prompt, tmp_path, monkeypatch):
    """Requests go on while a file is being written."""
    began, go_on = threading.Event(), threading.Event()
    save = disk_tier.save_snapshot

    def slow_save(*arguments, **options):
        began.set()
        assert go_on.wait(60)
        save(*arguments, **options)

    monkeypatch.setattr(disk_tier, "save_snapshot", slow_save)
    model = load(prefix_cache_dir=tmp_path)
    first = prompt(100)
    model.cached_session(first)
    assert began.wait(60)  # nobody asked for it
    for _ in range(3):
        assert_like_cold(model, model.cached_session(prompt(100)), 3)
    assert cached(model, first) == 100
    assert session_files(tmp_path) == []
    go_on.set()
    assert model.cache.flush(60)
    assert len(session_files(tmp_path)) == 4


def test_dropped_snapshots_go_to_the_directory_and_come_back(load, prompt, tmp_path):
    model = load(prefix_cache_dir=tmp_path, prefix_cache_bytes=5 * MIB)
    prompts = [prompt(100) for _ in range(6)]
    for ids in prompts:
        model.cached_session(ids)
        assert model.cache.flush(60)
    assert model.cache.stats().evictions > 2 and len(session_files(tmp_path)) == model.cache.stats().files == 6
    for ids in prompts:
        session = model.cached_session(ids)
        assert session.cached_tokens == 100
        assert_like_cold(model, session, 3)
        assert model.cache.stats().bytes <= 5 * MIB


def test_a_snapshot_dropped_before_it_was_written_is_written(load, prompt, tmp_path, monkeypatch):
    monkeypatch.setattr(disk_writer, "_IDLE_SECONDS", 1e6)
    monkeypatch.setattr(disk_writer, "_MOST_SECONDS", 1e6)
    model = load(prefix_cache_dir=tmp_path, prefix_cache_bytes=4 * MIB)
    first = prompt(100)
    model.cached_session(first)
    assert session_files(tmp_path) == []
    model.cached_session(prompt(100))  # there is room for one
    assert model.cache.stats().evictions == 1
    deadline = time.monotonic() + 60
    while not session_files(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.01)
    model.cache.clear()
    assert cached(model, first) == 100


def test_what_is_in_memory_is_not_read(load, prompt, tmp_path, monkeypatch):
    read = []
    load_snapshot = disk_tier.load_snapshot
    monkeypatch.setattr(disk_tier, "load_snapshot", lambda *given: read.append(given[0]) or load_snapshot(*given))
    model = load(prefix_cache_dir=tmp_path)
    ids = prompt(100).tolist()
    model.cached_session(ids).close()
    assert model.cache.flush(60)
    for given in (ids, [*ids, 5], [*ids, *prompt(60)]):
        assert cached(model, given) == 100
    assert not read
    model.cache.clear()
    assert cached(model, ids) == 100
    assert read == session_files(tmp_path)


def test_limit_of_the_directory(load, prompt, tmp_path):
    model = load(prefix_cache_dir=tmp_path, prefix_cache_bytes=5 * MIB, prefix_cache_disk_bytes=7 * MIB)
    for _ in range(12):
        model.cached_session(prompt(100))
        assert model.cache.flush(60)
        assert sum(file.stat().st_size for file in tmp_path.iterdir()) == model.cache.stats().file_bytes <= 7 * MIB
    last = prompt(100)
    model.cached_session(last)
    model.close()
    assert 1 <= len(session_files(tmp_path)) <= 4
    assert load(prefix_cache_dir=tmp_path).cached_session(last).cached_tokens == 100


def test_a_smaller_limit_holds_from_the_beginning(load, prompt, tmp_path):
    model = load(prefix_cache_dir=tmp_path)
    prompts = [prompt(100) for _ in range(4)]
    for ids in prompts:
        model.cached_session(ids)
        assert model.cache.flush(60)
    model.close()
    smaller = load(prefix_cache_dir=tmp_path, prefix_cache_disk_bytes=4 * MIB)
    assert smaller.cache.flush(60)
    assert len(session_files(tmp_path)) == smaller.cache.stats().files == 2
    assert [smaller.cache.explain(ids).cached_tokens for ids in prompts] == [0, 0, 100, 100]


def test_the_limit_holds_over_all_models(load, prompt, tmp_path):
    """The files of other weights are in the way as well, and the oldest go first."""
    other = load(prefix_cache_dir=tmp_path, kv_cache_type="bfloat16")
    prompts = [prompt(100) for _ in range(3)]
    for ids in prompts:
        other.cached_session(ids).close()
        assert other.cache.flush(60)
    model = load(prefix_cache_dir=tmp_path, prefix_cache_disk_bytes=6 * MIB)
    model.cached_session(prompts[0]).close()
    assert model.cache.flush(60)
    assert len(session_files(tmp_path)) == 3 and model.cache.stats().files == 1
    other.close()
    again = load(prefix_cache_dir=tmp_path, kv_cache_type="bfloat16")
    assert [again.cache.explain(ids).cached_tokens for ids in prompts] == [0, 100, 100]


def test_a_file_that_was_read_outlives_one_that_was_not(load, prompt, tmp_path):
    prompts = [prompt(100) for _ in range(3)]
    model = load(prefix_cache_dir=tmp_path)
    for ids in prompts:
        model.cached_session(ids)
        assert model.cache.flush(60)
    model.close()
    reader = load(prefix_cache_dir=tmp_path)
    assert cached(reader, prompts[0]) == 100
    reader.close()
    full = load(prefix_cache_dir=tmp_path, prefix_cache_disk_bytes=6 * MIB)
    full.cached_session(prompt(100))
    full.close()
    last = load(prefix_cache_dir=tmp_path)
    assert [last.cache.explain(ids).cached_tokens for ids in prompts] == [100, 0, 100]


def test_a_prefix_in_use_outlives_newer_files(load, prompt, tmp_path):
    """Also while it is found in memory, and its file is not read."""
    shared = prompt(100)
    model = load(prefix_cache_dir=tmp_path, prefix_cache_disk_bytes=6 * MIB)
    model.cached_session(shared).close()
    for _ in range(6):
        assert cached(model, [*shared, *prompt(2)]) == 100
        model.cached_session(prompt(100)).close()
        assert model.cache.flush(60)
    model.close()
    assert cached(load(prefix_cache_dir=tmp_path), [*shared, *prompt(5)]) == 100


def test_where_many_prompts_part_outlives_single_ones(load, prompt, tmp_path):
    system = prompt(100).tolist()
    model = load(prefix_cache_dir=tmp_path)
    for _ in range(3):
        model.cached_session([*system, *prompt(20)], snapshot_at=[100]).close()
        assert model.cache.flush(60)
    model.close()
    full = load(prefix_cache_dir=tmp_path, prefix_cache_disk_bytes=8 * MIB)
    for _ in range(5):
        full.cached_session(prompt(100)).close()
        assert full.cache.flush(60)
    full.close()
    assert len(session_files(tmp_path)) == 4
    assert cached(load(prefix_cache_dir=tmp_path), [*system, *prompt(5)]) == 100


def test_a_file_of_the_future_is_not_kept_for_ever(load, prompt, tmp_path):
    ids = prompt(100)
    model = load(prefix_cache_dir=tmp_path, prefix_cache_disk_bytes=4 * MIB)
    model.cached_session(ids).close()
    assert model.cache.flush(60)
    (file,) = session_files(tmp_path)
    os.utime(file, (time.time() + 1e8,) * 2)
    for _ in range(3):
        model.cached_session(prompt(100)).close()
        assert model.cache.flush(60)
    assert not file.exists() and len(session_files(tmp_path)) == 2


def test_a_limit_of_nothing_writes_and_removes_nothing(load, prompt, tmp_path):
    ids = prompt(100)
    load(prefix_cache_dir=tmp_path).cached_session(ids).model.close()
    model = load(prefix_cache_dir=tmp_path, prefix_cache_disk_bytes=0)
    assert cached(model, ids) == 100
    model.cached_session(prompt(100)).close()
    assert model.cache.flush(60)
    assert len(session_files(tmp_path)) == 1


def test_short_gains_are_computed(load, prompt, tmp_path):
    ids = prompt(40)
    load(prefix_cache_dir=tmp_path).cached_session(ids).model.close()
    model = load(prefix_cache_dir=tmp_path)
    assert model.cache.stats().files == 1
    assert model.cache.explain(ids).cached_tokens == model.cached_session(ids).cached_tokens == 0


def test_a_damaged_file_is_removed_and_a_shorter_one_used(load, prompt, tmp_path):
    ids = prompt(300)
    model = load(prefix_cache_dir=tmp_path)
    model.cached_session(ids, snapshot_at=[200])
    model.close()
    file = max(session_files(tmp_path), key=lambda file: file.stat().st_size)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)
    model = load(prefix_cache_dir=tmp_path)
    assert model.cache.stats().files == 2
    session = model.cached_session(ids)
    assert session.cached_tokens == 200
    assert_like_cold(model, session)
    with contextlib.suppress(FileNotFoundError):  # it is removed, or already written anew
        assert file.read_bytes() != content
    model.close()
    assert load(prefix_cache_dir=tmp_path).cached_session(ids).cached_tokens == 300


def test_files_of_another_cache_type_are_left_alone(load, prompt, tmp_path):
    ids = prompt(200)
    load(prefix_cache_dir=tmp_path).cached_session(ids).model.close()
    other = load(prefix_cache_dir=tmp_path, kv_cache_type="bfloat16")
    session = other.cached_session(ids)
    assert session.cached_tokens == 0
    assert_like_cold(other, session)
    other.close()
    assert len(session_files(tmp_path)) == 2


def test_only_damage_costs_a_file(load, prompt, tmp_path, monkeypatch):
    """No room, a cancelled load, a shorter context: the file is as good as before."""
    ids = prompt(300)
    load(prefix_cache_dir=tmp_path).cached_session(ids).model.close()
    (file,) = session_files(tmp_path)
    model = load(prefix_cache_dir=tmp_path)
    for error in (MemoryLimitError("no room"), CancelledError("cancelled")):

        def fail(*_, error=error):
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(disk_tier, "load_snapshot", fail)
            session = model.cached_session([*ids, 7])
        assert session.cached_tokens == 0
        model.cache.clear()
        assert file.exists()
    assert cached(model, [*ids, 8]) == 300
    short = load(prefix_cache_dir=tmp_path, max_context=250)
    assert cached(short, ids[:250]) == 0
    assert file.exists()
    model.cache.clear()
    assert cached(model, ids) == 300


def test_a_directory_that_fails_costs_no_request(load, prompt, tmp_path, caplog):
    directory = tmp_path / "cache"
    model = load(prefix_cache_dir=directory, prefix_cache_bytes=3 * MIB)
    model.cached_session(prompt(100))
    assert model.cache.flush(60)
    for file in directory.iterdir():
        file.unlink()
    directory.rmdir()
    for _ in range(3):
        assert_like_cold(model, model.cached_session(prompt(100)), 3)
    assert not model.cache.flush(60)
    model.close()
    assert "cannot write" in caplog.text


def test_a_full_disk_is_told_once_and_tried_again(load, prompt, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(disk_writer, "_RETRY_SECONDS", 0.02)
    tries = []

    def full(*_, **__):
        tries.append(1)
        raise OSError(28, "No space left on device")

    model = load(prefix_cache_dir=tmp_path)
    ids = prompt(100)
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "lily"):
        patch.setattr(disk_tier, "save_snapshot", full)
        model.cached_session(ids)
        assert not model.cache.flush(60)
        model.cached_session(prompt(100))
        deadline = time.monotonic() + 60
        while len(tries) < 4 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(tries) >= 4 and caplog.text.count("No space left") == 1
    deadline = time.monotonic() + 60
    while len(session_files(tmp_path)) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    model.cache.clear()
    assert cached(model, ids) == 100


def test_closing_does_not_wait_long_for_the_disk(load, prompt, tmp_path, monkeypatch):
    def endless(*_, check, **__):
        while True:
            check()
            time.sleep(0.01)

    monkeypatch.setattr(disk_writer, "_CLOSING_SECONDS", 0.2)
    monkeypatch.setattr(disk_tier, "save_snapshot", endless)
    model = load(prefix_cache_dir=tmp_path)
    model.cached_session(prompt(100))
    began = time.monotonic()
    model.close()
    assert time.monotonic() - began < 20
    assert not [thread for thread in threading.enumerate() if thread.name == "lily-cache-writer"]


def test_a_model_that_is_dropped_takes_its_thread_along(load, prompt, tmp_path):
    from lily import Model
    from lily_tiny import CHECKPOINT

    model = Model.load(CHECKPOINT, threads=1, max_context=512, prefix_cache_dir=tmp_path)
    model.cached_session(prompt(100)).close()
    assert model.cache.flush(60)
    gone, thread = weakref.ref(model), model.cache.store._writer._thread
    del model
    gc.collect()
    thread.join(60)
    assert gone() is None and not thread.is_alive()


@pytest.mark.parametrize("empty", ["", "  ", Path(""), Path(), 5, b"folder", "a\0b"])  # noqa: PTH201
def test_no_path_is_no_directory(load, empty, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="prefix_cache_dir"):
        load(prefix_cache_dir=empty)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_with_a_hundred_thousand_files_slows_nobody(load, prompt, tmp_path, monkeypatch):
    """Whose names come and go all the time; it takes long to list."""
    model = load(prefix_cache_dir=tmp_path)
    ids = prompt(100)
    model.cached_session(ids).close()
    assert model.cache.flush(60)
    looks = []
    complete = CacheDirectory.complete

    def slow(directory):
        looks.append(1)
        time.sleep(0.2)
        return complete(directory)

    monkeypatch.setattr(CacheDirectory, "complete", slow)
    began = time.monotonic()
    for index in range(200):
        (tmp_path / str(index)).touch()
        assert model.cache.explain(ids).cached_tokens == 100
    assert 1 <= len(looks) <= 1 + (time.monotonic() - began) / 2
    assert (time.monotonic() - began) < 60


def test_a_directory_that_cannot_be_is_named(load, tmp_path):
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match=r"prefix_cache_dir: .*file"):
            load(prefix_cache_dir=path)


def test_directory_without_a_cache_is_refused(load, tmp_path):
    with pytest.raises(ConfigError, match="prefix_cache_dir"):
        load(prefix_cache_dir=tmp_path, prefix_cache_bytes=0)
