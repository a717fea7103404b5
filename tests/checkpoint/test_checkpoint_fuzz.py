"""Thousands of mutated checkpoints: each is read to something valid or refused with one of Lily's errors."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_edits import read_header_table, write_header
from checkpoint_helpers import assert_valid

from lily.checkpoint import read_checkpoint
from lily.errors import CheckpointError, ConfigError
from synthetic import random_config, text_config, write_checkpoint

ROUNDS = 600  # of each kind of mutation, for each kind of file
KINDS = ("stacked", "per_expert", "fused")
INDEX = "model.safetensors.index.json"

ODD_VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    3,
    7,
    255,
    2**31,
    2**32 + 1,
    2**40,
    2**63,
    2**64,
    10**30,
    0.0,
    0.5,
    -1.5,
    1e300,
    float("nan"),
    float("inf"),
    "",
    "a",
    "default",
    "U32",
    "BF16",
    "F16",
    "F32",
    "F64",
    "I64",
    "F4",
    "\ud800",
    "\0",
    "é",
    "../x.safetensors",
    "/x.safetensors",
    "model.safetensors",
    "full_attention",
    "qwen3_5_moe",
    [],
    {},
    [0],
    [0, 0],
    [1, 2, 3],
    [-1, 5],
    [2**62, 2**62],
    [True],
    [[]],
    {"a": 1},
    {"bits": 8},
    {"bits": 4, "group_size": 32},
)


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


def mutate_bytes(content: bytes, rng: random.Random) -> bytes:
    """Flip, overwrite, insert, delete, repeat or cut bytes."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 5, 20))):
        at = rng.randrange(len(data) + 1)
        span = rng.choice((1, 1, 2, 8, 64))
        kind = rng.randrange(6)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[at : at + span] = rng.randbytes(span)
        elif kind == 2:
            data[at:at] = rng.choice((b"[", b"{", b'"', b",", b"0", b"-", b"9" * 30, b"\\u0000", rng.randbytes(span)))
        elif kind == 3:
            del data[at : at + span]
        elif kind == 4:
            data[at:at] = data[at : at + span]
        else:
            del data[rng.randrange(len(data) + 1) :]
    return bytes(data)


def containers(value: Any) -> list[Any]:
    """Every object and list within a JSON value."""
    found = []
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, (dict, list)):
            found.append(item)
            stack.extend(item.values() if isinstance(item, dict) else item)
    return found


def mutate_json(content: dict[str, Any], rng: random.Random) -> None:
    """Replace, remove, rename, swap or nudge fields anywhere in a JSON object, in place."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        place = rng.choice([item for item in containers(content) if item] or [content])
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            continue
        key, other = rng.choice(keys), rng.choice(keys)
        kind = rng.randrange(6)
        if kind == 0:
            place[key] = rng.choice(ODD_VALUES)
        elif kind == 1:
            del place[key]
        elif kind == 2:
            place[key], place[other] = place[other], place[key]
        elif kind == 3 and isinstance(place[key], int):
            place[key] = place[key] + rng.choice((-1, 1, 8, -8, 2**20)) if rng.randrange(2) else place[key] * 2
        elif kind == 4 and isinstance(place, dict):
            renamed = rng.choice((f"{key}x", key.replace("layers.0", "layers.1"), key[1:], "é" + key, key.upper()))
            place[renamed] = place.pop(key)
        else:
            place[key] = json.loads(json.dumps(place[other]))


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
