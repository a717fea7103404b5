"""A cache's directory that other processes and foreign files share: nothing is removed but what Lily wrote."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cache_helpers import assert_like_cold, session_files

from lily import Model
from lily.cache.own_files import CacheDirectory
from lily.files.file_digest import FileStamp
from lily_tiny import CHECKPOINT

MIB = 1 << 20
PYTHON_PATH = os.pathsep.join(path for path in sys.path if path)
LONG_AGO = (time.time() - 7200,) * 2
NAME = "0123456789abcdef0123456789abcdef01234567.lily-session"
DEAD = 4_000_000  # no system has a process of that number


def partial(process: int, digit: str = "0") -> str:
    return f".{digit * 40}.lily-session.{process}-{digit * 8}.partial"


def tree(directory: Path) -> dict[str, object]:
    """Everything in a directory, with what it holds; nothing is followed or waited for."""
    found: dict[str, object] = {}
    for path in sorted(directory.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else None
        found[str(path.relative_to(directory))] = (status.st_mode, status.st_ino, content)
    return found


@pytest.fixture
def session_file(load, prompt, tmp_path_factory):
    """A file that a cache of other prompts wrote."""
    directory = tmp_path_factory.mktemp("source")
    model = load(prefix_cache_dir=directory)
    model.cached_session(prompt(100)).close()
    model.close()
    return session_files(directory)[0]


def plant_foreign_files(directory: Path, session_file: Path) -> None:
    """Whatever a home directory may hold, and things that look like ours."""
    for name in (".bashrc", ".env", ".netrc", ".ssh/id", "notes.txt", "model.lily-session", ".hidden.partial"):
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text("mine")
    # Our names, and not our content.
    for name in (NAME, partial(DEAD), partial(os.getpid(), "1")):
        (directory / name).write_bytes(b"mine, and of no use to anybody else")
    (directory / NAME.replace("0123", "eeee")).write_bytes(b"")
    for name in (f".notes.txt.{DEAD}-00000000.partial", f".{NAME}.{DEAD}.partial", f".{NAME}.{DEAD}-0000000.partial"):
        (directory / name).write_bytes(b"")
    (directory / partial(DEAD, "3")).write_bytes(b"\x02" + bytes(7) + b"{}")
    # Our content, and not our names.
    content = session_file.read_bytes()
    for name in ("saved", "x" + NAME, NAME + "~", NAME.upper(), "." + NAME, f".{NAME}.1-00.partial", "saved.partial"):
        (directory / name).write_bytes(content)
    # Our names, and not files.
    (directory / NAME.replace("0123", "aaaa")).symlink_to(session_file)
    (directory / partial(DEAD, "4")).symlink_to(session_file)
    (directory / NAME.replace("0123", "bbbb")).mkdir()
    (directory / partial(DEAD, "5")).mkdir()
    os.mkfifo(directory / NAME.replace("0123", "cccc"))
    os.mkfifo(directory / partial(DEAD, "6"))
    (directory / NAME.replace("0123", "dddd")).symlink_to("nowhere")
    for path in directory.rglob("*"):
        os.utime(path, LONG_AGO, follow_symlinks=False)


def test_foreign_files_are_not_touched(load, prompt, tmp_path, session_file):
    """Old ones, in a directory that is far above its limit, through loading, use, eviction and closing."""
    plant_foreign_files(tmp_path, session_file)
    before = tree(tmp_path)
    ids = prompt(100)
    for _ in range(2):
        model = load(prefix_cache_dir=tmp_path, prefix_cache_disk_bytes=4 * MIB)
        for _ in range(4):
            model.cached_session(prompt(100)).close()
            assert model.cache.flush(60)
        model.cached_session(ids).close()
        model.close()
        after = tree(tmp_path)
        assert {name: after.get(name) for name in before} == before
        written = [tmp_path / name for name in after.keys() - before.keys()]
        assert 1 <= len(written) <= 2 and sum(path.stat().st_size for path in written) <= 4 * MIB
    model = load(prefix_cache_dir=tmp_path)
    assert model.cached_session(ids).cached_tokens == 100
    assert session_file.exists()


def test_a_file_that_is_replaced_becomes_foreign(load, prompt, tmp_path):
    """Whatever takes a file's place after the cache saw it stays."""
    model = load(prefix_cache_dir=tmp_path, prefix_cache_disk_bytes=4 * MIB)
    ids = prompt(100)
    model.cached_session(ids).close()
    assert model.cache.flush(60)
    (file,) = session_files(tmp_path)
    for replace in (
        lambda: file.write_text("mine"),
        lambda: (file.unlink(), file.mkdir()),
        lambda: (file.rmdir(), os.mkfifo(file)),
        lambda: (file.unlink(), file.symlink_to(CHECKPOINT / "config.json")),
    ):
        replace()
        before = tree(tmp_path)
        model.cache.clear()
        with model.cached_session(ids) as session:
            assert session.cached_tokens == 0
        for _ in range(3):
            model.cached_session(prompt(100)).close()
            assert model.cache.flush(60)
        assert tree(tmp_path)[file.name] == before[file.name]


def test_only_the_file_that_was_seen_is_removed(session_file, tmp_path):
    directory = CacheDirectory(tmp_path)
    path = tmp_path / NAME
    path.write_bytes(session_file.read_bytes())
    seen = FileStamp.of(path.stat())
    other = tmp_path / "other"
    other.write_bytes(session_file.read_bytes())
    other.replace(path)
    directory.remove(NAME, seen)
    assert path.exists()
    directory.remove("../" + path.name, FileStamp.of(path.stat()))
    directory.remove(NAME, FileStamp.of(path.stat()))
    assert not path.exists()


@pytest.mark.parametrize("share", [0, 0.5, 1])
def test_partial_files_of_killed_processes_are_removed(load, tmp_path, session_file, share):
    """However much was written when they were killed."""
    content = session_file.read_bytes()
    dead, alive, old = (
        tmp_path / partial(process, digit) for process, digit in ((DEAD, "1"), (os.getpid(), "2"), (1, "3"))
    )
    for path in (dead, alive, old):
        path.write_bytes(content[: int(share * len(content))])
    os.utime(old, LONG_AGO)
    load(prefix_cache_dir=tmp_path).cache.flush(60)
    assert not dead.exists() and not old.exists()
    assert alive.exists()


@pytest.mark.parametrize("empty", [False, True])
def test_a_partial_file_that_is_being_written_is_left_alone(load, tmp_path, session_file, empty):
    path = tmp_path / partial(DEAD)
    path.write_bytes(b"" if empty else session_file.read_bytes()[:-1])
    os.utime(path, LONG_AGO)
    with path.open("rb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        load(prefix_cache_dir=tmp_path).cache.flush(60)
        assert path.exists()
    load(prefix_cache_dir=tmp_path).cache.flush(60)
    assert not path.exists()


def test_files_that_are_being_written_take_room(load, prompt, tmp_path):
    mib = 1 << 20
    written = tmp_path / partial(os.getpid())
    written.write_bytes(bytes(3 * mib))
    model = load(prefix_cache_dir=tmp_path, prefix_cache_disk_bytes=6 * mib)
    for _ in range(3):
        model.cached_session(prompt(100)).close()
        assert model.cache.flush(60)
    assert [2 * path.stat().st_size > 3 * mib for path in session_files(tmp_path)] == [True]
    assert written.exists()


def test_what_another_process_wrote_is_found(load, prompt, tmp_path):
    first, second = load(prefix_cache_dir=tmp_path), load(prefix_cache_dir=tmp_path)
    for count in (100, 150):
        ids = prompt(count)
        first.cached_session(ids).close()
        assert first.cache.flush(60)
        session = second.cached_session([*ids, 5])
        assert session.cached_tokens == count
        assert_like_cold(second, session, 3)
    assert second.cache.stats().files == first.cache.stats().files == 2


def test_what_another_process_removed_is_no_error(load, prompt, tmp_path):
    first, second = load(prefix_cache_dir=tmp_path), load(prefix_cache_dir=tmp_path)
    ids = prompt(100)
    first.cached_session(ids).close()
    assert first.cache.flush(60)
    assert second.cache.explain(ids).cached_tokens == 100
    for file in session_files(tmp_path):
        file.unlink()
    session = second.cached_session(ids)
    assert session.cached_tokens == 0
    assert_like_cold(second, session, 3)
    assert second.cache.flush(60)
    first.cache.clear()
    with first.cached_session(ids) as session:
        assert session.cached_tokens == 100


def run_child(code: str, *arguments: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", code, str(CHECKPOINT), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": PYTHON_PATH},
        stdout=subprocess.PIPE,
    )


BUSY = """
import sys
from lily import Model
checkpoint, directory, first, count, limit = *sys.argv[1:3], *map(int, sys.argv[3:])
with Model.load(checkpoint, threads=1, max_context=512, prefix_cache_dir=directory,
                prefix_cache_disk_bytes=limit) as model:
    print("loaded", flush=True)
    for index in range(first, first + count):
        model.cached_session([index, *range(100)]).close()
        model.cache.flush(60)
"""


def test_the_limit_holds_over_all_processes(load, tmp_path):
    limit = 8 * MIB
    children = [run_child(BUSY, tmp_path, first, 8, limit) for first in (0, 100, 200)]
    most = 0
    while any(child.poll() is None for child in children):
        sizes = []
        for path in tmp_path.iterdir():
            with contextlib.suppress(FileNotFoundError):
                sizes.append(path.stat().st_size)
        most = max(most, sum(sizes))
    assert [child.returncode for child in children] == [0, 0, 0]
    for child in children:
        child.stdout.close()
    assert 4 * MIB < most <= limit
    assert [path for path in tmp_path.iterdir() if path not in session_files(tmp_path)] == []
    model = load(prefix_cache_dir=tmp_path)
    assert model.cache.stats().files == 4


SLOW = """
import time
from lily.session import session_file
session_file._check_finite = lambda *_: time.sleep(0.2)
"""


def test_a_killed_writer_leaves_nothing_in_the_way(load, tmp_path):
    """Its lock is gone with it, and so is what it had begun to write, once the next process comes."""

    def partial_files() -> list[Path]:
        return [path for path in tmp_path.iterdir() if path.name.endswith(".partial") and path.stat().st_size]

    child = run_child(SLOW + BUSY, tmp_path, 0, 2, 64 * MIB)
    child.stdout.readline()
    deadline = time.monotonic() + 120
    while not partial_files() and time.monotonic() < deadline:
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert len(partial_files()) == 1
    model = load(prefix_cache_dir=tmp_path)
    with model.cached_session([0, *range(100), 3]) as session:
        assert session.cached_tokens == 0
    assert model.cache.flush(60)
    assert not partial_files() and len(session_files(tmp_path)) == 1


FORGETFUL = """
import sys
from lily import Model
model = Model.load(sys.argv[1], threads=1, max_context=512, prefix_cache_dir=sys.argv[2])
for index in range(int(sys.argv[3])):
    model.cached_session([index, *range(100)])
"""


def test_a_program_that_closes_nothing(load, tmp_path):
    """Its end writes what is left, and is a normal one, wherever the writing is."""
    for count in (0, 1, 12):
        child = run_child(FORGETFUL, tmp_path / str(count), count)
        assert child.wait(120) == 0
        child.stdout.close()
        assert len(session_files(tmp_path / str(count))) == count


def test_a_session_saved_in_the_directory_stays(load, prompt, tmp_path):
    """A user's own file, also under a name that ends as the cache's do."""
    model: Model = load(prefix_cache_dir=tmp_path, prefix_cache_disk_bytes=4 * MIB)
    with model.prefill(prompt(100)) as session:
        session.save(tmp_path / "mine.lily-session")
    for _ in range(4):
        model.cached_session(prompt(100)).close()
        assert model.cache.flush(60)
    model.close()
    assert load(prefix_cache_dir=tmp_path).load_session(tmp_path / "mine.lily-session").position == 100


def test_only_the_owner_reads_what_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    with Model.load(CHECKPOINT, threads=1, prefix_cache_dir="~/kept") as model:
        model.cached_session(list(range(5, 205)))
        model.cache.flush()
    kept = [*(tmp_path / "kept").glob("*.lily-session")]
    assert kept and {stat.S_IMODE(path.stat().st_mode) for path in kept} == {0o600}


def test_a_saved_session_keeps_the_modes_of_the_file_that_it_replaces(tmp_path):
    with Model.load(CHECKPOINT, threads=1) as model, model.prefill([1, 2, 3]) as session:
        path = tmp_path / "state"
        session.save(path)
        path.chmod(0o640)
        session.save(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
