"""Thousands of mutated checkpoints: each is read to something valid or refused with one of Lily's errors."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_edits import read_header_table, write_header

from checkpoint_helpers import assert_valid
from fuzz.mutations import mutate_bytes, mutate_json
from lily.checkpoint import read_checkpoint
from lily.errors import CheckpointError, ConfigError
from synthetic import random_config, text_config, write_checkpoint

ROUNDS = int(os.environ.get("LILY_FUZZ_ROUNDS", "600"))  # of each kind of mutation, for each kind of file
KINDS = ("stacked", "per_expert", "fused")
INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module", params=KINDS)
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small checkpoint of two layers in two shards with an index."""
    rng = np.random.default_rng([9, KINDS.index(request.param)])
    config = random_config(rng, nested=request.param != "fused", tied=False)
    types = ["linear_attention", "full_attention"]
    text_config(config).update(layer_types=types, num_hidden_layers=2, num_experts=3, num_experts_per_tok=2)
    return write_checkpoint(
        tmp_path_factory.mktemp(request.param),
        config,
        bits=None if request.param == "fused" else 4,
        group_size=32,
        layout=request.param,
        shards=2,
        extra=("mtp",),
    )


def attempt(directory: Path, outcomes: Counter[str]) -> None:
    """Read a mutated checkpoint; any exception but Lily's own fails the test."""
    try:
        checkpoint = read_checkpoint(directory)
    except (CheckpointError, ConfigError) as error:
        assert len(str(error)) < 20_000
        str(error).encode()  # printable on any terminal: no lone surrogates
        outcomes[type(error).__name__] += 1
    else:
        assert_valid(checkpoint)
        outcomes["valid"] += 1


def run(directory: Path, target: Path, rounds: int, mutated: Callable[[bytes, int], bytes]) -> Counter[str]:
    """Try `rounds` mutations of one file and restore it."""
    original = target.read_bytes()
    outcomes: Counter[str] = Counter()
    try:
        for number in range(rounds):
            target.write_bytes(mutated(original, number))
            attempt(directory, outcomes)
    finally:
        target.write_bytes(original)
    attempt(directory, Counter())
    return outcomes


def header_target(directory: Path, number: int) -> Path:
    return directory / f"model-{number % 2 + 1:05d}-of-00002.safetensors"


def test_unmutated(written: Path) -> None:
    outcomes: Counter[str] = Counter()
    attempt(written, outcomes)
    assert outcomes == {"valid": 1}


@pytest.mark.parametrize("name", ["config.json", INDEX])
def test_mutated_json_files(written: Path, name: str) -> None:
    def fields(original: bytes, number: int) -> bytes:
        content = json.loads(original)
        mutate_json(content, random.Random(f"{name} fields {number}"))
        return json.dumps(content).encode()

    def text(original: bytes, number: int) -> bytes:
        return mutate_bytes(original, random.Random(f"{name} bytes {number}"))

    for mutated in (fields, text):
        outcomes = run(written, written / name, ROUNDS // 2, mutated)
        assert outcomes["ConfigError" if name == "config.json" else "CheckpointError"] > ROUNDS // 20
        assert sum(outcomes.values()) == ROUNDS // 2


def test_mutated_header_fields(written: Path) -> None:
    outcomes: Counter[str] = Counter()
    for shard in range(2):
        target = header_target(written, shard)
        header, data = read_header_table(target)

        def fields(_: bytes, number: int, header: dict[str, Any] = header, data: bytes = data) -> bytes:
            content = json.loads(json.dumps(header))
            mutate_json(content, random.Random(f"header {number}"))
            text = json.dumps(content).encode()
            return len(text).to_bytes(8, "little") + text + data

        outcomes += run(written, target, ROUNDS // 2, fields)
    assert outcomes["CheckpointError"] > ROUNDS // 2
    assert set(outcomes) <= {"CheckpointError", "valid"}


def test_mutated_header_bytes(written: Path) -> None:
    target = header_target(written, 0)
    header, data = read_header_table(target)
    text = json.dumps(header).encode()

    def keep_length(_: bytes, number: int) -> bytes:
        mutated = mutate_bytes(text, random.Random(f"kept {number}"))
        return len(mutated).to_bytes(8, "little") + mutated + data

    def whole(original: bytes, number: int) -> bytes:
        rng = random.Random(f"whole {number}")
        start = mutate_bytes(original[: 8 + len(text)], rng)
        return start + (original[8 + len(text) :] if rng.randrange(2) else b"")

    write_header(target, text, data)
    for mutated in (keep_length, whole):
        outcomes = run(written, target, ROUNDS // 2, mutated)
        assert outcomes["CheckpointError"] > ROUNDS // 4


def test_every_truncation_of_a_header(written: Path) -> None:
    target = header_target(written, 1)
    header, data = read_header_table(target)
    size = len(target.read_bytes()) - len(data)
    assert header
    lengths = sorted(random.Random(4).sample(range(size), 200))
    outcomes = run(written, target, len(lengths), lambda original, number: original[: lengths[number]])
    assert outcomes == {"CheckpointError": len(lengths)}
