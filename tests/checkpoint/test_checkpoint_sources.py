"""resolve_source: paths, bundled models and Hub ids, online, offline and without the extra."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_hub import COMMIT, serve

from lily.checkpoint import read_checkpoint, resolve_source
from lily.checkpoint.hub import DISTRIBUTION
from lily.errors import CheckpointError, InvalidArgumentError, MissingExtraError
from synthetic import random_config, write_checkpoint

REPOSITORY = "some-owner/Model_1.5"

FETCH = """
import json, sys
from lily.checkpoint import resolve_source, read_checkpoint
from lily.errors import LilyError

calls = []
kinds = {"callable": lambda *call: calls.append(call), "shown": True, "hidden": False, "default": None}
progress = kinds[sys.argv[2]]
try:
    path = resolve_source(sys.argv[1], progress)
except LilyError as error:
    print(json.dumps({"error": type(error).__name__, "text": str(error), "calls": calls}))
else:
    ignored = read_checkpoint(path).ignored
    print(json.dumps({"path": str(path), "calls": calls, "ignored": ignored}))
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    write_checkpoint(folder, random_config(np.random.default_rng(53)), group_size=32, shards=2)
    (folder / "tokenizer.json").write_text("{}")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "README.md").write_text("not needed")
    (folder / "pytorch_model.bin").write_bytes(b"not needed")
    (folder / "._tokenizer.json").write_bytes(b"not needed")
    return folder


def fetch(name: str, home: Path, progress: str = "hidden", **environment: str) -> dict[str, Any]:
    """Resolve a name in a process of its own, as huggingface_hub reads its settings once."""
    pytest.importorskip("huggingface_hub")
    removed = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING"))}
    result = subprocess.run(
        [sys.executable, "-c", FETCH, name, progress],
        env={
            **removed,
            "HF_HOME": str(home),
            "HF_HUB_DISABLE_XET": "1",
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    answer: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    answer["stderr"] = result.stderr
    return answer


def test_a_path_is_returned_as_it_is(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_source(model) == model
    assert resolve_source(str(model)) == model
    assert resolve_source(model / "model-00001-of-00002.safetensors").name == "model-00001-of-00002.safetensors"
    monkeypatch.setenv("HOME", str(model.parent))
    assert resolve_source("~/model") == model


def test_an_existing_path_goes_before_a_hub_id(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model.parent.parent)
    name = f"{model.parent.name}/{model.name}"
    assert resolve_source(name) == Path(name)


def test_bundled_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "lily-tiny").mkdir()
    monkeypatch.chdir(tmp_path)
    path = resolve_source("lily-tiny")
    assert path.is_absolute()
    assert path.parts[-3:] == ("lily", "data", "lily-tiny")
    assert resolve_source(Path("lily-tiny")) == Path("lily-tiny")
    assert resolve_source("./lily-tiny") == Path("lily-tiny")
    if path.is_dir():
        assert read_checkpoint(path).text_tensors == 357


@pytest.mark.parametrize(
    "name",
    ["nothing-here", "/no/such/folder", "a/b/c", "owner/", "../x/y", "owner/model.safetensors", "~nobody/x"],
)
def test_a_name_of_nothing(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=r"no such file or directory.*lily-tiny.*owner/name"):
        resolve_source(name)


@pytest.mark.parametrize(
    "name",
    [
        "dir/model.gguf", "dir/config.json", "./owner/name", "../name", "/owner/name", "~/owner", "owner/name/",
        "owner//name", "owner/name.git", "own..er/name", "owner/na--me", "owner/name.", "-owner/name", "owner name/x",
        "owner/pytorch_model.bin", "owner/chat_template.jinja", "a/b/c", "owner/" + "x" * 200, "o\\name/x",
    ],
)  # fmt: skip
def test_no_plausible_id_never_reaches_the_hub(name: str, hub_is_a_trap: None) -> None:
    with pytest.raises(CheckpointError, match="no such file or directory"):
        resolve_source(name)


@pytest.mark.parametrize("name", ["models/Qwen3.6-35B", "models/Qwen3.6-35B@main"])
@pytest.mark.parametrize("kind", ["directory", "file", "broken link"])
def test_a_mistyped_path_never_reaches_the_hub(name: str, kind: str, hub_is_a_trap: None, tmp_path: Path) -> None:
    if kind == "directory":
        (tmp_path / "models").mkdir()
    elif kind == "file":
        (tmp_path / "models").touch()
    else:
        (tmp_path / "models").symlink_to("nowhere")
    with pytest.raises(CheckpointError, match="no such file or directory, though models exists"):
        resolve_source(name)


def test_a_path_object_never_reaches_the_hub(hub_is_a_trap: None) -> None:
    with pytest.raises(CheckpointError, match="no such file or directory"):
        resolve_source(Path(REPOSITORY))


@pytest.fixture
def hub_is_a_trap(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty directory to work in, and a Hub that must not be asked."""

    def trap(*_: object) -> None:
        pytest.fail("the Hub was asked")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lily.checkpoint.hub._download", trap)


def test_asking_the_hub_is_logged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lily.checkpoint.hub._download", lambda *_: tmp_path)
    with caplog.at_level("INFO", logger="lily"):
        assert resolve_source(REPOSITORY) == tmp_path
    assert f"{REPOSITORY}: no such directory; asking the Hub" in caplog.text


@pytest.mark.parametrize("name", [None, 3, b"bytes", "", "a\0b", ["x"]])
def test_not_a_name(name: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        resolve_source(name)


def test_a_missing_extra_gives_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtraError) as caught:
        resolve_source(REPOSITORY)
    assert f"pip install '{DISTRIBUTION}[hub]'" in str(caught.value)
    assert isinstance(caught.value, ImportError)


def test_fetch_then_work_offline(model: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    requests: list[str] = []
    with serve(REPOSITORY, model, requests) as endpoint:
        online = fetch(REPOSITORY, home, "callable", HF_ENDPOINT=endpoint)
    path = Path(online["path"])
    assert path.name == COMMIT
    wanted = {
        file.name
        for file in model.iterdir()
        if file.suffix in (".safetensors", ".json", ".jinja") and file.name[0] != "."
    }
    assert {file.name for file in path.iterdir()} == wanted
    assert not any("README" in request or ".bin" in request for request in requests)
    size = sum((model / name).stat().st_size for name in wanted)
    assert online["calls"]
    assert all(what == f"downloading {REPOSITORY}" and done <= total for what, done, total in online["calls"])
    assert online["calls"][-1][1:] == [size, size]

    for environment in ({"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}):
        offline = fetch(REPOSITORY, home, **environment)
        assert offline["path"] == online["path"]
    pinned = fetch(f"{REPOSITORY}@{COMMIT}", home, HF_HUB_OFFLINE="1")
    assert pinned["path"] == online["path"]


@pytest.mark.parametrize("progress", ["shown", "hidden", "default"])
def test_progress_bar(progress: str, model: Path, tmp_path: Path) -> None:
    with serve(REPOSITORY, model, []) as endpoint:
        answer = fetch(REPOSITORY, tmp_path / "home", progress, HF_ENDPOINT=endpoint)
    assert "path" in answer
    assert bool("%" in answer["stderr"]) is (progress == "shown")  # standard error is no terminal here


def test_failures_of_the_hub(model: Path, tmp_path: Path) -> None:
    offline = fetch(REPOSITORY, tmp_path / "home", HF_HUB_OFFLINE="1")
    unreachable = fetch(REPOSITORY, tmp_path / "home", HF_ENDPOINT="http://127.0.0.1:9")
    with serve("another/model", model, []) as endpoint:
        absent = fetch(REPOSITORY, tmp_path / "home", HF_ENDPOINT=endpoint)
    for answer in (offline, unreachable, absent):
        assert answer["error"] == "CheckpointError"
        assert REPOSITORY in answer["text"]
        assert "no such directory here" in answer["text"]
        assert "check the name, the network and your access" in answer["text"]
        assert "\n" not in answer["text"]
