"""Paths that begin with ~ mean the user's home wherever one is given, as prefix_cache_dir and the model's name do."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import lily
from lily.checkpoint import read_checkpoint
from lily.text import ChatTemplate, Tokenizer, read_generation_defaults, read_stop_tokens, read_tokenizer_config
from lily_tiny import CHECKPOINT


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory, and another one to be in."""
    for name in ("home", "here"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "home"


def test_sessions_are_saved_there_and_found_again(home: Path, model: lily.Model) -> None:
    model.prefill([1, 2, 3]).save("~/one")
    assert (home / "one").is_file()
    assert not list(Path.cwd().iterdir())
    assert model.load_session("~/one").tokens == model.load_session(Path("~/one")).tokens == [1, 2, 3]


def test_a_folder_of_that_name_is_reached_by_a_path_that_says_so(home: Path, model: lily.Model) -> None:
    Path("./~").mkdir()  # Path drops the dot
    model.prefill([1, 2, 3]).save("./~/one")
    assert (Path.cwd() / "~" / "one").is_file()
    assert not list(home.iterdir())


def test_a_user_who_does_not_exist_has_no_home(home: Path, model: lily.Model) -> None:
    with pytest.raises(OSError):
        model.prefill([1]).save("~nobody-by-this-name/one")
    with pytest.raises(lily.LilyError):
        lily.Model.load(CHECKPOINT, prefix_cache_dir="~nobody-by-this-name/cache")


def test_every_file_of_a_checkpoint_is_found_there(home: Path) -> None:
    shutil.copytree(CHECKPOINT, home / "tiny")
    assert read_checkpoint("~/tiny").directory == home / "tiny"
    assert lily.plan("~/tiny", 64) == lily.plan(home / "tiny", 64)
    assert Tokenizer.from_directory("~/tiny").vocab_size == Tokenizer.from_file("~/tiny/tokenizer.json").vocab_size
    assert ChatTemplate.from_directory("~/tiny").source
    assert read_tokenizer_config("~/tiny").special_tokens
    assert read_generation_defaults("~/tiny") == read_generation_defaults(CHECKPOINT)
    assert read_stop_tokens("~/tiny", vocab_size=4160)
    assert lily.step_report("~/tiny", phase="decode", context=8)
    with lily.Model.load("~/tiny", threads=1, prefix_cache_dir="~/cache"):
        assert (home / "cache").is_dir()
