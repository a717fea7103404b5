"""Checkpoints from strangers: config.json, the index and safetensors headers, read and, where valid, loaded and run."""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from hypothesis import strategies as st

from checkpoint_helpers import assert_valid
from fuzz.mutations import mutated_bytes, mutated_json
from fuzz.target import Attempt, Target
from lily import Model
from lily.checkpoint import read_checkpoint
from lily.errors import LilyError
from synthetic import random_config, text_config, write_checkpoint

__all__ = ["TARGETS", "write_small_checkpoint"]

_INDEX = "model.safetensors.index.json"
_SHARD = "model-00001-of-00002.safetensors"
_HUGE = 1 << 34  # bytes of a sparse file
_MOST_MEMORY = 1 << 30  # of a model that is loaded: numbers in a config may ask for any amount


def write_small_checkpoint(directory: Path) -> None:
    """Two layers in two shards with an index, some kilobytes."""
    config = random_config(np.random.default_rng(9), nested=True, tied=False)
    types = ["linear_attention", "full_attention"]
    text_config(config).update(layer_types=types, num_hidden_layers=2, num_experts=3, num_experts_per_tok=2)
    write_checkpoint(directory, config, bits=4, group_size=32, shards=2, extra=("mtp",))


@functools.lru_cache(maxsize=1)
def _contents() -> dict[str, bytes]:
    with TemporaryDirectory() as folder:
        write_small_checkpoint(Path(folder))
        return {file.name: file.read_bytes() for file in Path(folder).iterdir()}


@contextlib.contextmanager
def _prepare(folder: Path) -> Iterator[Attempt]:
    contents = _contents()
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    assert _load(folder) == "ran"

    def attempt(value: dict[str, Any]) -> str:
        target = folder / value["file"]
        target.write_bytes(value["content"])
        if value["size"] is not None:
            os.truncate(target, value["size"])
        try:
            return _load(folder)
        finally:
            target.write_bytes(contents[value["file"]])

    yield attempt
    assert _load(folder) == "ran"


def _load(folder: Path) -> str:
    try:
        checkpoint = read_checkpoint(folder)
    except LilyError as error:
        _check_message(error)
        return "refused"
    assert_valid(checkpoint)
    try:
        with Model.load(folder, threads=1, memory_limit=_MOST_MEMORY, prefix_cache_bytes=0) as model:
            model.prefill([0, 1, 2]).close()
    except LilyError as error:
        _check_message(error)
        return "refused later"
    return "ran"


def _check_message(error: LilyError) -> None:
    assert len(str(error)) < 20_000
    str(error).encode()  # printable on any terminal: no lone surrogates


def _file(name: str, content: st.SearchStrategy[bytes]) -> st.SearchStrategy[dict[str, Any]]:
    sizes = st.none() | st.sampled_from([0, 1, 7, 8, 9, 100, _HUGE])
    return st.fixed_dictionaries({"file": st.just(name), "content": content, "size": st.one_of(st.none(), sizes)})


def _json_file(name: str) -> st.SearchStrategy[dict[str, Any]]:
    content = _contents()[name]
    fields = mutated_json(json.loads(content)).map(lambda value: json.dumps(value).encode())
    return _file(name, fields | mutated_bytes(content))


def _header_file() -> st.SearchStrategy[dict[str, Any]]:
    content = _contents()[_SHARD]
    end = 8 + int.from_bytes(content[:8], "little")
    data = content[end:]

    def with_length(text: bytes) -> bytes:
        return len(text).to_bytes(8, "little") + text + data

    fields = mutated_json(json.loads(content[8:end])).map(lambda value: with_length(json.dumps(value).encode()))
    lengths = st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 2**31, 2**63, 2**64 - 1, len(content) - 8])
    kinds = [
        fields,
        fields,
        mutated_bytes(content[8:end]).map(with_length),
        mutated_bytes(content[:end]).map(lambda text: text + data),
        lengths.map(lambda length: length.to_bytes(8, "little") + content[8:]),
    ]
    return _file(_SHARD, st.one_of(kinds))


_OUTCOMES = frozenset({"refused", "ran"})
TARGETS = [
    Target("config", st.deferred(lambda: _json_file("config.json")), _prepare, 250, _OUTCOMES),
    Target("index", st.deferred(lambda: _json_file(_INDEX)), _prepare, 150, _OUTCOMES),
    Target("header", st.deferred(_header_file), _prepare, 250, _OUTCOMES),
]
