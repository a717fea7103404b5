"""Processes killed while they write sessions and cache files: no damage, no leftovers, nothing foreign lost."""

from __future__ import annotations

import multiprocessing
import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from .checkpoints import small_checkpoint
from .figures import MIB, Figures
from .isolated import outcome_of
from .limits import Limits
from .memory import peak_bytes, rss_bytes
from .states import check_state, load

__all__ = ["attack"]

LENGTHS = (40, 300)
DISK_BYTES = 2 * MIB
FOREIGN = {
    "notes.txt": b"mine",
    ".hidden.partial": b"mine",
    "0" * 40 + ".lily-session": b"a name like one of the cache's",
    ".session.1-abcdef01.partial": b"mine as well",
    "." + "0" * 40 + ".lily-session.1-abcdef01.partial": b"also a name like one of the cache's",
    "session.partial": b"mine",
}
PREPARE_SECONDS = 60


def attack(limits: Limits) -> Figures:
    """Kill processes that write, and look at what they left."""
    figures = Figures("kills")
    with tempfile.TemporaryDirectory(prefix="lily-attack-") as name:
        folder = Path(name)
        os.environ["LILY_CACHE_DIR"] = str(folder / "hashes")
        checkpoint = small_checkpoint(folder / "checkpoint")
        model = load(checkpoint)
        before = rss_bytes()
        for part in ("saved", "cached"):
            (folder / part).mkdir()
            for foreign, content in FOREIGN.items():
                (folder / part / foreign).write_bytes(content)
        for seed in limits.seeds():
            if limits.is_over:
                break
            part, work, check = (
                ("saved", _save_for_ever, _check_saved) if seed % 2 else ("cached", _cache_for_ever, _check_cached)
            )
            _kill(work, checkpoint, folder / part, random.Random(seed))
            outcome = outcome_of(lambda at=folder / part, check=check: check(model, checkpoint, at))
            figures.count(outcome, f"seed {seed}, {part}")
        _check_leftovers(figures, model, checkpoint, folder)
        figures.saw(before, peak_bytes(), rss_bytes())
        model.close()
    return figures


def _kill(work: Any, checkpoint: Path, folder: Path, rng: random.Random) -> None:
    """Start a process that writes, and kill it at any time after its first write."""
    context = multiprocessing.get_context("spawn")
    began = context.Event()
    process = context.Process(target=work, args=(checkpoint, folder, began, rng.randrange(2**32)), daemon=True)
    process.start()
    if not began.wait(PREPARE_SECONDS):
        process.kill()
        raise RuntimeError("the process that writes did not start")
    time.sleep(rng.random() * rng.choice((0.001, 0.02, 0.3)))
    process.kill()
    process.join()


def _ids(number: int, length: int) -> list[int]:
    return [1 + (number * 977 + place * 31) % 4000 for place in range(length)]


def _save_for_ever(checkpoint: Path, folder: Path, began: Any, seed: int) -> None:
    model = load(checkpoint, prefix_cache_bytes=0)
    sessions = [model.prefill(_ids(0, length)) for length in LENGTHS]
    began.set()
    while True:
        for session in sessions:
            session.save(folder / "session")


def _cache_for_ever(checkpoint: Path, folder: Path, began: Any, seed: int) -> None:
    model = _caching(checkpoint, folder)
    number = seed % 50
    while True:
        model.cached_session(_ids(number, 300)).close()
        began.set()
        model.cache.flush(0.3)
        number += 1


def _caching(checkpoint: Path, folder: Path) -> Any:
    return load(checkpoint, prefix_cache_bytes=64 * MIB, prefix_cache_dir=folder, prefix_cache_disk_bytes=DISK_BYTES)


def _check_saved(model: Any, checkpoint: Path, folder: Path) -> None:
    if (folder / "session").exists():
        with model.load_session(folder / "session") as session:
            assert len(session.tokens) in LENGTHS, "a session that was never saved"
            check_state(model, session)


def _check_cached(model: Any, checkpoint: Path, folder: Path) -> None:
    size = sum(path.stat().st_size for path in folder.iterdir() if path.name not in FOREIGN)
    assert size <= DISK_BYTES, f"{size} bytes in the directory, more than its limit"
    with _caching(checkpoint, folder) as one:
        for number in range(0, 50, 10):
            with one.cached_session(_ids(number, 300)) as session:
                check_state(model, session)


def _check_leftovers(figures: Figures, model: Any, checkpoint: Path, folder: Path) -> None:
    """After one undisturbed write in each folder."""
    model.prefill(_ids(0, 40)).save(folder / "saved" / "session")
    with _caching(checkpoint, folder / "cached") as one:
        for number in range(3):
            one.cached_session(_ids(1000 + number, 300)).close()
        one.cache.flush(30)
    for part in ("saved", "cached"):
        for foreign, content in FOREIGN.items():
            path = folder / part / foreign
            if not path.exists() or path.read_bytes() != content:
                figures.broken(f"{part}: the foreign file {foreign} was removed or changed")
        left = [path for path in (folder / part).iterdir() if path.name not in FOREIGN and "partial" in path.name]
        figures.notes.append(f"{part}: {len(left)} unfinished files left")
        if left:
            figures.broken(f"{part}: unfinished files pile up: {[path.name for path in left][:3]}")
