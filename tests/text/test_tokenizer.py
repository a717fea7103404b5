"""Tests of the tokenizer: ids, special tokens, vocabulary bound, and damaged files."""

import json
import pickle
import random
import unicodedata

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from mixed_strings import mixed_strings

from lily.errors import InvalidArgumentError, LilyError, TokenizerError
from lily.text import Tokenizer


@pytest.fixture(scope="module")
def library(tiny) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(tiny / "tokenizer.json"))


def test_ids_equal_the_library_and_decode_gives_the_text_back(tokenizer, library):
    for text in mixed_strings(300, seed=1):
        ids = tokenizer.encode(text)
        assert ids == library.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(ids) == unicodedata.normalize("NFC", text)


def test_decode_of_random_ids_equals_the_library(tokenizer, library):
    chooser = random.Random(2)
    for _ in range(300):
        ids = [chooser.randrange(tokenizer.vocab_size) for _ in range(chooser.randint(0, 30))]
        assert tokenizer.decode(ids) == library.decode(ids, skip_special_tokens=False)
        assert tokenizer.decode(ids, skip_special=True) == library.decode(ids, skip_special_tokens=True)


def test_encode_adds_nothing(tokenizer):
    assert tokenizer.encode("") == []
    assert tokenizer.encode("a") == [tokenizer.token_id("a")]


def test_every_added_token_is_one_id_unless_escaped(tokenizer):
    assert len(tokenizer.added_tokens) == 33
    for text, token in tokenizer.added_tokens.items():
        assert tokenizer.encode(f"a{text}b") == [*tokenizer.encode("a"), token, *tokenizer.encode("b")]
        escaped = tokenizer.encode(f"a{text}b", parse_special=False)
        assert token not in escaped
        assert not set(escaped) & set(tokenizer.added_tokens.values())
        assert tokenizer.decode(escaped) == f"a{text}b"


def test_escaping_changes_nothing_in_ordinary_text(tokenizer):
    for text in mixed_strings(100, seed=3):
        assert tokenizer.encode(text, parse_special=False) == tokenizer.encode(text)


def test_skip_special_keeps_thinking_tags(tokenizer):
    ids = tokenizer.encode("<|im_start|>x<think>y</think><|im_end|>")
    assert tokenizer.decode(ids, skip_special=True) == "x<think>y</think>"


def test_vocab_size_is_the_highest_real_id_plus_one(tokenizer, directory):
    assert tokenizer.vocab_size == 4096
    fields = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
    last = fields["added_tokens"].pop()
    (directory / "tokenizer.json").write_text(json.dumps(fields), encoding="utf-8")
    assert Tokenizer.from_directory(directory).vocab_size == last["id"]


@pytest.mark.parametrize("token", [-1, 4096, 2**40])
def test_ids_without_token_are_refused(tokenizer, token):
    with pytest.raises(InvalidArgumentError, match=str(token)):
        tokenizer.decode([5, token])


@pytest.mark.parametrize("text", ["a\ud800b", "\udfff", b"bytes", None, 7])
def test_text_that_is_no_text_is_refused(tokenizer, text):
    with pytest.raises(InvalidArgumentError, match="text"):
        tokenizer.encode(text)


def test_truncation_and_padding_in_the_file_are_ignored(directory, tokenizer):
    fields = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
    fields["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    fields["padding"] = {
        "strategy": {"Fixed": 50},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "!",
    }
    (directory / "tokenizer.json").write_text(json.dumps(fields), encoding="utf-8")
    text = "one two three four five"
    assert Tokenizer.from_directory(directory).encode(text) == tokenizer.encode(text)


def test_a_pickled_tokenizer_gives_the_same_ids(tokenizer):
    text = "Příliš <think> žluťoučký"
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert copy.encode(text) == tokenizer.encode(text)
    assert copy.encode(text, parse_special=False) == tokenizer.encode(text, parse_special=False)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(TokenizerError, match=r"tokenizer\.json is missing"):
        Tokenizer.from_directory(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"{}", b"\xff\xfe", b'{"model": 3}'])
def test_damaged_file_is_named(tmp_path, content):
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        Tokenizer.from_directory(tmp_path)


def test_a_directory_in_place_of_the_file_is_a_clear_error(tmp_path):
    (tmp_path / "tokenizer.json").mkdir()
    with pytest.raises(TokenizerError, match="cannot be read"):
        Tokenizer.from_directory(tmp_path)


def test_a_tokenizer_of_another_kind_is_refused(directory):
    fields = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
    fields["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    (directory / "tokenizer.json").write_text(json.dumps(fields), encoding="utf-8")
    with pytest.raises(TokenizerError, match="byte-level"):
        Tokenizer.from_directory(directory)


def test_random_damage_gives_a_tokenizer_or_a_clear_error(tiny):
    source = (tiny / "tokenizer.json").read_text(encoding="utf-8")
    chooser = random.Random(4)
    refused = 0
    for _ in range(60):
        at, length = chooser.randrange(len(source)), chooser.randint(1, 200)
        damaged = source[:at] + chooser.choice(["", "}", '"', "[9]", "\\"]) + source[at + length :]
        try:
            tokenizer = Tokenizer(damaged)
            tokenizer.decode(tokenizer.encode("some text"))
        except LilyError:
            refused += 1
    assert refused > 30


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=60))
def test_any_text_survives(tokenizer, text):
    for parse_special in (True, False):
        ids = tokenizer.encode(text, parse_special=parse_special)
        assert tokenizer.decode(ids) == unicodedata.normalize("NFC", text)
        assert all(0 <= token < tokenizer.vocab_size for token in ids)
