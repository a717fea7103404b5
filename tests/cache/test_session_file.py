"""Session files: exact resumption, refusal of whatever does not fit, and writes that survive a crash."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cache_helpers import assert_like_cold, assert_same_logits, greedy
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from lily import Model, Sampling, _core
from lily.errors import CheckpointError, ContextOverflowError, LilyError
from lily_tiny import CHECKPOINT
from synthetic import Options, random_config, write_checkpoint

PYTHON_PATH = os.pathsep.join(path for path in sys.path if path)


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory):
    """(path, tokens) of a session of 301 tokens."""
    path = tmp_path_factory.mktemp("saved") / "session.safetensors"
    tokens = np.random.default_rng(3).integers(0, 4000, 301)
    with model.prefill(tokens) as session:
        session.save(path)
    return path, tokens.tolist()


def rewrite(source: Path, target: Path, **changes: object) -> Path:
    """A copy of a file with other fields in its header, its checksum left as it is."""
    with safe_open(source, framework="numpy") as stream:
        metadata = dict(stream.metadata())
    metadata["lily"] = json.dumps(json.loads(metadata["lily"]) | changes, sort_keys=True)
    save_file(load_file(source), target, metadata)
    return target


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
@pytest.mark.parametrize("count", [1, 255, 256, 257, 600])
def test_resumes_exactly(load, prompt, tmp_path, kind, count):
    model = load(kv_cache_type=kind)
    session = model.prefill(prompt(count))
    path = tmp_path / "session.safetensors"
    session.save(path)
    resumed = load(kv_cache_type=kind).load_session(path)
    assert resumed.tokens == session.tokens
    assert_same_logits(resumed, session)
    expected = greedy(session, 32)
    for token in expected:
        assert resumed.logits.argmax() == token
        resumed.decode(token)
    assert resumed.tokens == session.tokens
    session.decode(1)
    resumed.decode(1)
    assert_same_logits(resumed, session)


def test_resumes_within_a_generation_with_its_seed(model, prompt, tmp_path):
    session = model.session(seed=17)
    session.prefill(prompt(90))
    list(session.generate(7, sampling=Sampling(), stop_tokens=()))
    session.save(tmp_path / "a")
    resumed = model.load_session(tmp_path / "a")
    assert resumed.tokens == session.tokens and resumed.position == 97
    expected = list(session.generate(20, sampling=Sampling(), stop_tokens=()))
    assert list(resumed.generate(20, sampling=Sampling(), stop_tokens=())) == expected
    other = model.load_session(tmp_path / "a", seed=18)
    assert list(other.generate(20, sampling=Sampling(), stop_tokens=())) != expected


def test_empty_session(model, prompt, tmp_path):
    model.session().save(tmp_path / "empty")
    session = model.load_session(tmp_path / "empty")
    assert session.tokens == [] and session.logits is None
    session.prefill(prompt(20))
    assert_like_cold(model, session)


def test_is_a_safetensors_file_with_every_layer(model, saved):
    path, tokens = saved
    arrays = load_file(path)
    assert arrays["tokens"].tolist() == tokens
    assert arrays["logits"].shape == (model.config.vocab_size,)
    state = {name.rsplit(".", 1)[0] for name in arrays if name.startswith("layers.")}
    assert state == {f"layers.{layer}" for layer in range(model.config.num_hidden_layers)}
    config = model.config
    assert arrays["layers.3.keys"].shape == (301, config.num_key_value_heads, config.head_dim)
    assert arrays["layers.3.keys"].dtype == np.float16
    assert path.stat().st_size < 1.02 * sum(array.nbytes for array in arrays.values()) + 65536


def test_overwrites_and_leaves_nothing_else(model, prompt, tmp_path):
    path = tmp_path / "session"
    for count in (5, 300, 7):
        model.prefill(prompt(count)).save(path)
        assert model.load_session(path).position == count
    assert [file.name for file in tmp_path.iterdir()] == ["session"]


def test_other_weights_are_refused(saved, tmp_path):
    for file in CHECKPOINT.iterdir():
        shutil.copy(file, tmp_path)
    weights = max(tmp_path.glob("*.safetensors"), key=lambda file: file.stat().st_size)
    with Model.load(tmp_path, threads=1) as same:
        assert same.load_session(saved[0]).tokens == saved[1]
    with weights.open("rb+") as stream:
        stream.seek(-1, os.SEEK_END)
        last = stream.read(1)[0]
        stream.seek(-1, os.SEEK_END)
        stream.write(bytes([last ^ 1]))
    with Model.load(tmp_path, threads=1) as other, pytest.raises(CheckpointError, match="its weights are not"):
        other.load_session(saved[0])


def test_other_dimensions_are_refused(saved, tmp_path):
    config = random_config(np.random.default_rng(5))
    write_checkpoint(tmp_path, config, Options(seed=5, bits=None))
    with Model.load(tmp_path, threads=1) as other, pytest.raises(CheckpointError, match=r"whose \w+ is"):
        other.load_session(saved[0])


def test_other_cache_type_is_refused(load, saved):
    with pytest.raises(CheckpointError, match=r"kv_cache_type=float16.*kv_cache_type=bfloat16"):
        load(kv_cache_type="bfloat16").load_session(saved[0])


@pytest.mark.skipif(_core.available_isas() == ["portable"], reason="there is no other instruction set")
def test_portable_kernels_round_otherwise(load, saved, tmp_path):
    with pytest.raises(CheckpointError, match=r"computed by 'cpu, .*computes by 'cpu portable, "):
        load(cpu_isa="portable").load_session(saved[0])
    path = tmp_path / "portable"
    portable = load(cpu_isa="portable")
    portable.prefill([1, 2, 3]).save(path)
    assert portable.load_session(path).position == 3
    with pytest.raises(CheckpointError, match=r"computed by 'cpu portable, .*computes by 'cpu, "):
        load(cpu_isa=_core.available_isas()[0]).load_session(path)


def test_states_of_earlier_kernels_are_refused(model, saved, tmp_path):
    for arithmetic in ("cpu, kv_cache_type=float16", "cpu, arithmetic=1, kv_cache_type=float16", None):
        changed = rewrite(saved[0], tmp_path / "changed", arithmetic=arithmetic)
        with pytest.raises(CheckpointError, match=f"computed by {arithmetic!r} .*rounds differently"):
            model.load_session(changed)


def test_too_long_for_the_context_is_refused(load, saved):
    model = load(max_context=300)
    with pytest.raises(ContextOverflowError, match="301"):
        model.load_session(saved[0])
    assert load(max_context=301).load_session(saved[0]).position == 301


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"version": 2}, "version 2"),
        ({"format": "other"}, "not a session file"),
        ({"fingerprint": "0" * 64}, "its weights are not"),
        ({"dimensions": None}, "dimensions"),
        ({"position": 300}, "position"),
        ({"position": "many"}, "position"),
        ({"seed": -1}, "seed"),
        ({"seed": 4}, "checksum"),
        ({"pending": 5.5}, "pending"),
        ({"pending": 17}, "checksum"),
    ],
)
def test_changed_headers_are_refused(model, saved, tmp_path, changes, reason):
    with pytest.raises(CheckpointError, match=reason):
        model.load_session(rewrite(saved[0], tmp_path / "changed", **changes))


def test_tensors_that_do_not_fit_are_refused(model, saved, tmp_path):
    with safe_open(saved[0], framework="numpy") as stream:
        metadata = stream.metadata()
    path = tmp_path / "changed"
    for name, value in {
        "layers.0.conv_state": None,
        "layers.3.keys": np.zeros((300, 1, 256), np.float16),
        "layers.3.values": np.zeros((301, 1, 256), np.float32),
        "logits": np.zeros(7, np.float32),
        "tokens": np.zeros(301, np.int64),
        "extra": np.zeros(3, np.int8),
    }.items():
        arrays = load_file(saved[0])
        arrays.pop(name, None)
        if value is not None:
            arrays[name] = value
        save_file(arrays, path, metadata)
        with pytest.raises(CheckpointError, match=name):
            model.load_session(path)


def test_missing_and_foreign_files_are_refused(model, tmp_path):
    (tmp_path / "text").write_text("no session")
    (tmp_path / "empty").touch()
    save_file({"tokens": np.zeros(3, np.int32)}, tmp_path / "foreign")
    for name in ("absent", "text", "empty", "foreign", "."):
        with pytest.raises(CheckpointError, match=str(tmp_path)):
            model.load_session(tmp_path / name)
    with pytest.raises(CheckpointError, match="not a session file"):
        model.load_session(max(CHECKPOINT.glob("*.safetensors"), key=lambda file: file.stat().st_size))


def test_truncated_files_are_refused(model, saved, tmp_path):
    content = saved[0].read_bytes()
    path = tmp_path / "short"
    lengths = np.random.default_rng(1).integers(0, len(content), 40).tolist()
    for length in [*range(12), *lengths, len(content) - 1]:
        path.write_bytes(content[:length])
        with pytest.raises(CheckpointError):
            model.load_session(path)


@pytest.mark.parametrize("part", ["header", "data"])
def test_damaged_bytes_are_refused(model, saved, tmp_path, part):
    """Any changed byte is noticed, whether in the header or in the values."""
    content = saved[0].read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    random = np.random.default_rng(7)
    path = tmp_path / "damaged"
    begin, end, count = (0, header, 250) if part == "header" else (header, len(content), 60)
    accepted = 0
    for position in random.integers(begin, end, count):
        damaged = bytearray(content)
        damaged[position] ^= int(random.integers(1, 256))
        path.write_bytes(damaged)
        try:
            model.load_session(path).close()
        except LilyError as error:
            assert isinstance(error, CheckpointError)
        else:
            # Only where the header has a byte without meaning: the space that pads it.
            assert content[position : position + 1] == b" " and damaged[position] in b" \t\r\n"
            accepted += 1
    assert accepted <= 1


def test_session_works_after_a_failed_save(model, prompt, tmp_path):
    session = model.prefill(prompt(50))
    with pytest.raises(OSError):
        session.save(tmp_path / "no" / "such" / "folder")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError):
        session.save(tmp_path / "folder")
    assert [file.name for file in tmp_path.iterdir()] == ["folder"]
    assert_like_cold(model, session)


def test_only_regular_files_are_replaced_and_read(model, prompt, tmp_path):
    """A device that is replaced is gone for the whole machine; opening a pipe waits for ever."""
    session = model.prefill(prompt(50))
    pipe, link, file = tmp_path / "pipe", tmp_path / "link", tmp_path / "file"
    os.mkfifo(pipe)
    for target in (pipe, "/dev/null"):
        with pytest.raises(OSError, match="regular file"):
            session.save(target)
        with pytest.raises(CheckpointError, match="not a regular file"):
            model.load_session(target)
    assert pipe.is_fifo()
    assert Path("/dev/null").is_char_device()
    with pytest.raises(IsADirectoryError):
        session.save("")
    link.symlink_to(file)
    session.save(link)
    assert link.is_symlink()
    assert model.load_session(file).tokens == model.load_session(link).tokens == session.tokens
    assert {one.name for one in tmp_path.iterdir()} == {"pipe", "link", "file"}


def run_child(code: str, *arguments: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": PYTHON_PATH},
        stdout=subprocess.PIPE,
    )


def test_full_disk_leaves_the_old_file(model, saved, tmp_path):
    path = tmp_path / "session"
    shutil.copy(saved[0], path)
    limited = f"""
import resource, signal, sys
from lily import Model
model = Model.load({str(CHECKPOINT)!r}, threads=1)
session = model.prefill(range(700))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, {resource.RLIM_INFINITY}))
try:
    session.save(sys.argv[1])
except OSError:
    sys.exit(3)
"""
    with run_child(limited, path) as child:
        assert child.wait(60) == 3
    assert [file.name for file in tmp_path.iterdir()] == ["session"]
    assert model.load_session(path).tokens == saved[1]


def test_killed_while_saving_leaves_a_whole_file(model, tmp_path):
    """kill -9 as soon as the new file is seen growing: the old one is still there, complete."""
    path = tmp_path / "session"
    endless = f"""
import sys
from lily import Model
model = Model.load({str(CHECKPOINT)!r}, threads=1, prefix_cache_bytes=0)
sessions = [model.prefill(range(count)) for count in (1500, 1501)]
while True:
    for session in sessions:
        session.save(sys.argv[1])
        print(session.position, flush=True)
"""

    def partial_files():
        return [file for file in tmp_path.iterdir() if file.name.startswith(".")]

    interrupted = 0
    for _ in range(30):
        with run_child(endless, path) as child:
            assert child.stdout is not None
            child.stdout.readline()  # the first file is complete
            while not partial_files() and child.poll() is None:
                pass
            child.send_signal(signal.SIGKILL)
        assert model.load_session(path).position in (1500, 1501)
        interrupted += len(partial_files()) > 0
        with model.prefill(range(5)) as session:
            session.save(path)
        assert not [file for file in partial_files() if file.stat().st_size]  # the next save tidies up
        for file in partial_files():
            file.unlink()
        if interrupted == 3:
            break
    assert interrupted == 3
