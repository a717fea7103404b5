"""Tests of the streaming detokenizer: whole characters only, nothing lost, however the bytes are cut."""

import random
import time
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mixed_strings import mixed_strings

from lily.errors import InvalidArgumentError


@pytest.fixture(scope="module")
def token_of_bytes(tokenizer) -> dict[bytes, int]:
    added = set(tokenizer.added_tokens.values())
    tokens = {tokenizer.token_bytes(token): token for token in range(tokenizer.vocab_size) if token not in added}
    assert all(bytes([byte]) in tokens for byte in range(256))
    return tokens


def cut_into_tokens(data: bytes, token_of_bytes: dict[bytes, int], longest: int = 12) -> list[int]:
    """Greedy longest match, so that tokens end wherever the vocabulary says and not at characters."""
    tokens, at = [], 0
    while at < len(data):
        length = next(n for n in range(longest, 0, -1) if data[at : at + n] in token_of_bytes and at + n <= len(data))
        tokens.append(token_of_bytes[data[at : at + length]])
        at += length
    return tokens


def stream(tokenizer, tokens, **options) -> list[str]:
    detokenizer = tokenizer.detokenizer(**options)
    return [*(detokenizer.feed(token) for token in tokens), detokenizer.finish()]


def test_every_byte_split_of_mixed_strings(tokenizer, token_of_bytes):
    for text in mixed_strings(200, seed=5):
        data = text.encode("utf-8")
        for at in range(len(data) + 1):
            tokens = cut_into_tokens(data[:at], token_of_bytes) + cut_into_tokens(data[at:], token_of_bytes)
            pieces = stream(tokenizer, tokens)
            assert "".join(pieces) == text == tokenizer.decode(tokens)
            assert pieces[-1] == ""
            # A piece is a run of whole characters: no replacement character that the text does not hold.
            assert sum(piece.count("\ufffd") for piece in pieces) == text.count("\ufffd")


def test_one_byte_per_token(tokenizer, token_of_bytes):
    for text in mixed_strings(200, seed=6):
        tokens = [token_of_bytes[bytes([byte])] for byte in text.encode("utf-8")]
        assert [piece for piece in stream(tokenizer, tokens) if piece] == list(text)


@settings(max_examples=300, deadline=None)
@given(data=st.data(), skip_special=st.booleans())
def test_any_ids_stream_to_their_full_decode(tokenizer, data, skip_special):
    tokens = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=40))
    pieces = stream(tokenizer, tokens, skip_special=skip_special)
    assert "".join(pieces) == tokenizer.decode(tokens, skip_special=skip_special)


def test_bytes_left_at_the_end_are_flushed(tokenizer, token_of_bytes):
    detokenizer = tokenizer.detokenizer()
    half = [token_of_bytes[bytes([byte])] for byte in "a😀".encode()[:-1]]
    assert "".join(detokenizer.feed(token) for token in half) == "a"
    assert detokenizer.finish() == "\ufffd"
    assert detokenizer.finish() == ""
    # After finish() a new stream starts clean.
    assert detokenizer.feed(token_of_bytes[b"b"]) == "b"


def test_a_special_token_cuts_a_character(tokenizer, token_of_bytes):
    end = tokenizer.token_id("<|im_end|>")
    start, rest = (token_of_bytes[bytes([byte])] for byte in "é".encode())
    assert stream(tokenizer, [start, end, rest]) == ["", "\ufffd<|im_end|>", "\ufffd", ""]
    assert "".join(stream(tokenizer, [start, end, rest], skip_special=True)) == "é"


def test_a_refused_id_leaves_the_stream_unchanged(tokenizer, token_of_bytes):
    detokenizer = tokenizer.detokenizer()
    start, rest = (token_of_bytes[bytes([byte])] for byte in "é".encode())
    detokenizer.feed(start)
    with pytest.raises(InvalidArgumentError):
        detokenizer.feed(tokenizer.vocab_size)
    assert detokenizer.feed(rest) == "é"


def test_the_cost_of_a_token_does_not_grow(tokenizer):
    chooser = random.Random(7)
    tokens = [chooser.randrange(4000) for _ in range(60_000)]
    detokenizer = tokenizer.detokenizer()
    tokenizer.decode(range(4000))  # fill the cache of token bytes first

    def seconds_for(part):
        start = time.process_time()
        for token in part:
            detokenizer.feed(token)
        return time.process_time() - start

    first, *_, last = (seconds_for(tokens[at : at + 10_000]) for at in range(0, 60_000, 10_000))
    assert last < 5 * first + 0.05
    tracemalloc.start()
    seconds_for(tokens)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 20_000  # bytes: nothing of the stream is kept
