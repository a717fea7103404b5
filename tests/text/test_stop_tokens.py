"""Tests of the stop ids: the union over three files, in every form that writers use."""

import json

import pytest

from lily.errors import ConfigError, TokenizerError
from lily.text import read_stop_tokens

ALL_FILES = ("generation_config.json", "config.json", "tokenizer_config.json")


def change(path, **fields):
    """Set fields of a JSON object; the value `...` removes one."""
    content = json.loads(path.read_text(encoding="utf-8"))
    content.update(fields)
    path.write_text(json.dumps({k: v for k, v in content.items() if v is not ...}), encoding="utf-8")


def only(directory, *names):
    for name in ALL_FILES:
        if name not in names:
            (directory / name).unlink()


def test_lily_tiny(tiny, tokenizer):
    assert read_stop_tokens(tiny, vocab_size=4096, tokenizer=tokenizer) == {4063, 4065}


@pytest.mark.parametrize("files", [ALL_FILES, ALL_FILES[:1], ALL_FILES[:2], ALL_FILES[1:]])
def test_any_one_file_is_enough_for_what_it_says(directory, tokenizer, files):
    only(directory, *files)
    assert read_stop_tokens(directory, vocab_size=4096, tokenizer=tokenizer) == {4063, 4065}


def test_tokenizer_config_alone(directory, tokenizer):
    only(directory, "tokenizer_config.json")
    assert read_stop_tokens(directory, vocab_size=4096, tokenizer=tokenizer) == {4065}
    assert read_stop_tokens(directory, vocab_size=4096) == frozenset()


def test_the_union_of_differing_files(directory, tokenizer):
    change(directory / "generation_config.json", eos_token_id=[11, 12])
    change(directory / "config.json", eos_token_id=13, text_config={"eos_token_id": 14})
    change(directory / "tokenizer_config.json", eos_token={"content": "<|endoftext|>"})
    stops = read_stop_tokens(directory, vocab_size=4096, tokenizer=tokenizer)
    assert stops == {11, 12, 13, 14, tokenizer.token_id("<|endoftext|>")}


@pytest.mark.parametrize("value", [None, [], ...])
def test_null_and_missing_say_nothing(directory, value):
    change(directory / "generation_config.json", eos_token_id=value)
    text_config = {} if value is ... else {"eos_token_id": value}
    change(directory / "config.json", eos_token_id=value, text_config=text_config)
    assert read_stop_tokens(directory, vocab_size=4096) == frozenset()


@pytest.mark.parametrize("file", ["generation_config.json", "config.json"])
@pytest.mark.parametrize("value", [4096, -1, [3, 4096], 2**70, "4065", True, 1.0, [None], [[1]], {}])
def test_bad_ids_are_refused(directory, file, value):
    change(directory / file, eos_token_id=value)
    with pytest.raises(ConfigError, match=f"{file}: eos_token_id"):
        read_stop_tokens(directory, vocab_size=4096)


def test_a_bad_id_in_the_text_config_is_refused(directory):
    change(directory / "config.json", text_config={"eos_token_id": 4096})
    with pytest.raises(ConfigError, match=r"config\.json: text_config\.eos_token_id contains 4096"):
        read_stop_tokens(directory, vocab_size=4096)


@pytest.mark.parametrize("file", ["generation_config.json", "config.json"])
@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff"])
def test_damaged_files_are_named(directory, file, content):
    (directory / file).write_bytes(content)
    with pytest.raises(ConfigError, match=file):
        read_stop_tokens(directory, vocab_size=4096)


@pytest.mark.parametrize("token", [5, ["<|im_end|>"], {"text": "x"}, "<no such token>"])
def test_bad_tokenizer_tokens_are_refused(directory, tokenizer, token):
    change(directory / "tokenizer_config.json", eos_token=token)
    with pytest.raises(TokenizerError, match=r"tokenizer_config\.json: eos_token"):
        read_stop_tokens(directory, vocab_size=4096, tokenizer=tokenizer)


def test_a_tokenizer_larger_than_the_model_is_refused(directory, tokenizer):
    only(directory, "tokenizer_config.json")
    with pytest.raises(TokenizerError, match="id 4065, outside the vocabulary of 4065"):
        read_stop_tokens(directory, vocab_size=4065, tokenizer=tokenizer)
