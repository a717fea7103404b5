"""Loading and closing: representations, pickling, garbage collection, and everything given back."""

from __future__ import annotations

import contextlib
import copy
import gc
import os
import pickle
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lily
from engine_helpers import THREADS, expect_success, fresh_logits, run_python
from lily.errors import BusyError, CheckpointError
from synthetic import write_checkpoint
from synthetic_configs import random_config

ROUNDS = 5


def mapped(directory: Path) -> list[str]:
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if str(directory) in line]


def open_files() -> set[tuple[str, str]]:
    """Descriptors and what they lead to."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the descriptor of this listing
            found.add((entry.name, str(entry.readlink())))
    return found


def thread_count() -> int:
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_representations(checkpoint: Path) -> None:
    model = lily.Model.load(checkpoint, threads=THREADS)
    assert repr(model).startswith("<lily.Model 'small' layers=4 backend='cpu' isa=")
    session = model.session()
    assert repr(session).startswith("<lily.Session position=0 ")
    session.prefill([1, 2])
    assert "position=2" in repr(session)
    seen: list[str] = []
    session.prefill([3], progress=lambda done, total: seen.append(repr(session)))
    assert seen == ["<lily.Session in use>"]
    session.close()
    assert repr(session) == "<lily.Session closed>"
    model.close()
    assert repr(model) == "<lily.Model 'small' closed>"


def test_context_managers(checkpoint: Path) -> None:
    with lily.Model.load(checkpoint, threads=THREADS) as model, model.session() as session:
        session.prefill([1])
    assert model.closed and repr(session) == "<lily.Session closed>"
    with (
        pytest.raises(ZeroDivisionError),
        lily.Model.load(checkpoint, threads=THREADS) as model,
        model.session(),
    ):
        raise ZeroDivisionError
    assert model.closed


@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.copy, copy.deepcopy])
def test_no_pickling(model: lily.Model, session: lily.Session, duplicate: Any) -> None:
    for thing in (model, session):
        with pytest.raises(TypeError, match=r"cannot be pickled.*process"):
            duplicate(thing)


def test_closing_a_session_in_use(session: lily.Session) -> None:
    def close(done: int, total: int) -> None:
        with pytest.raises(BusyError):
            session.close()
        with pytest.raises(BusyError):
            session.reset()

    logits = session.prefill([1, 2, 3], progress=close)
    assert np.array_equal(logits, fresh_logits(session.model, [1, 2, 3]))


def test_garbage_collection(checkpoint: Path) -> None:
    before = mapped(checkpoint)
    model = lily.Model.load(checkpoint, threads=THREADS)
    session = model.session()
    session.prefill([1, 2, 3])
    generation = session.generate(max_tokens=3)
    next(generation, None)
    gone = [weakref.ref(model), weakref.ref(session)]
    assert len(mapped(checkpoint)) == len(before) + 2
    del model, session, generation
    gc.collect()
    assert [reference() for reference in gone] == [None, None]
    assert mapped(checkpoint) == before


def test_a_session_keeps_its_model_alive(checkpoint: Path) -> None:
    session = lily.Model.load(checkpoint, threads=THREADS).session()
    gc.collect()
    assert len(session.prefill([1, 2])) == session.model.config.vocab_size
    session.model.close()


def test_rounds_of_loading_give_everything_back(tmp_path: Path) -> None:
    config = random_config(np.random.default_rng(4), nested=True)
    config["text_config"].update(vocab_size=40_000, hidden_size=512, tie_word_embeddings=False)
    config["tie_word_embeddings"] = False
    write_checkpoint(tmp_path, config, bits=8, group_size=32, shards=3, seed=4)
    size = sum(file.stat().st_size for file in tmp_path.glob("*.safetensors"))
    assert size > 40e6

    def round_trip() -> None:
        with lily.Model.load(tmp_path, threads=THREADS) as model:
            assert len(mapped(tmp_path)) >= 3
            model.prefill(range(300)).decode(1)

    round_trip()
    gc.collect()
    files, threads, memory = open_files(), thread_count(), resident_bytes()
    for _ in range(ROUNDS):
        round_trip()
        assert not mapped(tmp_path)
    gc.collect()
    assert not open_files() - files  # others, such as connections of a test before this one, may be closed meanwhile
    assert thread_count() == threads
    assert resident_bytes() - memory < size / 4


@pytest.mark.parametrize(("weights", "kept"), [("mmap", 2), ("read", 0)])
def test_only_mapped_files_stay_open_and_only_with_the_model(checkpoint: Path, weights: str, kept: int) -> None:
    """They are looked at before each call: content that changes would change the weights."""
    before = open_files()
    with lily.Model.load(checkpoint, threads=THREADS, weights=weights):
        assert len([path for _, path in open_files() - before if path.startswith(str(checkpoint))]) == kept
    assert not open_files() - before


@pytest.mark.parametrize("change", ["truncate", "grow", "replace", "remove"])
def test_a_file_that_changes_while_loading(
    change: str, tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in checkpoint.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    shard = sorted(tmp_path.glob("*.safetensors"))[-1]
    honest = lily.model.loading.native_source

    def meanwhile(source: Any) -> Any:
        content = shard.read_bytes()
        if change == "remove":
            shard.unlink()
        else:
            shard.write_bytes({"truncate": content[:-1], "grow": content + b"\0", "replace": b"other"}[change])
        return honest(source)

    monkeypatch.setattr(lily.model.loading, "native_source", meanwhile)
    with pytest.raises(CheckpointError, match=shard.name):
        lily.Model.load(tmp_path, threads=THREADS)
    assert not mapped(tmp_path)


def test_nothing_leaks_at_exit(checkpoint: Path) -> None:
    code = """
import sys, lily
model = lily.Model.load(sys.argv[1], threads=2)
session = model.prefill([1, 2, 3])
generation = session.generate(max_tokens=5)
next(generation, None)
logits = session.logits
"""
    expect_success(run_python(code, checkpoint))
