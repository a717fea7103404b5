"""Thousands of mutated side files: each is read, or refused with a short error of Lily's that names the file."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fuzz.mutations import mutate_bytes, mutate_json
from lily.errors import LilyError
from lily.text import ChatTemplate, Tokenizer, read_generation_defaults, read_stop_tokens, read_tokenizer_config

ROUNDS = int(os.environ.get("LILY_FUZZ_ROUNDS", "300"))  # of each kind of mutation, for each file
MESSAGES = [{"role": "user", "content": "Hi"}]


def use_tokenizer(directory: Path) -> None:
    tokenizer = Tokenizer.from_directory(directory)
    for parse_special in (True, False):
        tokenizer.decode(tokenizer.encode("<|im_end|> Hi é", parse_special=parse_special))


READERS: dict[str, Callable[[Path], object]] = {
    "tokenizer_config.json": read_tokenizer_config,
    "generation_config.json": read_generation_defaults,
    "config.json": lambda directory: read_stop_tokens(directory, vocab_size=10_000),
    "chat_template.jinja": lambda directory: ChatTemplate.from_directory(directory).render(MESSAGES),
    "tokenizer.json": use_tokenizer,
}


def attempt(name: str, directory: Path) -> bool:
    """Whether the file is still read; any exception but Lily's own fails the test."""
    try:
        READERS[name](directory)
    except LilyError as error:
        assert len(str(error)) < 1000
        str(error).encode()  # printable on any terminal: no lone surrogates
        return False
    return True


def small_tokenizer(path: Path) -> None:
    """Cut the vocabulary, so that building it thousands of times does not take long."""
    fields = json.loads(path.read_text(encoding="utf-8"))
    model = fields["model"]
    model["vocab"] = {token: number for token, number in model["vocab"].items() if len(token) == 1}
    model["merges"] = []
    fields["added_tokens"] = fields["added_tokens"][:5]
    path.write_text(json.dumps(fields, ensure_ascii=False), encoding="utf-8")


@pytest.mark.parametrize("name", READERS)
def test_mutated(tiny: Path, tmp_path: Path, name: str) -> None:
    shutil.copyfile(tiny / name, tmp_path / name)
    if name == "tokenizer.json":
        small_tokenizer(tmp_path / name)
    original = (tmp_path / name).read_bytes()
    assert attempt(name, tmp_path)
    refused = 0
    for number in range(ROUNDS):
        (tmp_path / name).write_bytes(mutate_bytes(original, random.Random(f"{name} bytes {number}")))
        refused += not attempt(name, tmp_path)
        if name.endswith(".json"):
            fields = json.loads(original)
            mutate_json(fields, random.Random(f"{name} fields {number}"))
            (tmp_path / name).write_text(json.dumps(fields), encoding="utf-8")
            refused += not attempt(name, tmp_path)
    assert refused > ROUNDS // 20
