"""The tokens of parts of an output: their bytes and texts are those of the parts, wherever these begin and end."""

from hypothesis import given, settings
from hypothesis import strategies as st

from lily.chat.events import TokenLogprob
from lily.chat.token_spans import TokenSpans
from parsing import pieces_of


class Bytes:
    """A tokenizer whose tokens are given."""

    def __init__(self, tokens):
        self.tokens = tokens

    def token_bytes(self, token, *, skip_special=False):
        return self.tokens[token]


def spans_of(tokens):
    from lily.text import StreamingDetokenizer

    detokenizer = StreamingDetokenizer(Bytes(tokens))
    spans, text = TokenSpans(), ""
    for at, data in enumerate(tokens):
        piece = detokenizer.feed(at)
        spans.add(TokenLogprob(data.decode("utf-8", "replace"), at, data, -1.0 * at), piece)
        text += piece
    rest = detokenizer.finish()
    spans.add_text(rest)
    return spans, text + rest


def cut(data, borders):
    places = sorted({border for border in borders if 0 < border < len(data)})
    return [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True) if start < end]


@settings(deadline=None)
@given(
    st.text(st.sampled_from("ab \n\u010d\u20ac\U0001f600"), min_size=1, max_size=20),
    st.lists(st.integers(0, 60), max_size=12),
    st.lists(st.integers(0, 20), max_size=5),
    st.lists(st.booleans(), min_size=6, max_size=6),
)
def test_parts_are_spelled_by_their_tokens(text, token_borders, part_borders, wanted):
    tokens = cut(text.encode(), token_borders)
    spans, decoded = spans_of(tokens)
    assert decoded == text
    place = 0
    for part, is_wanted in zip(pieces_of(text, part_borders), wanted, strict=False):
        if is_wanted:
            taken = spans.take(part, place)
            assert b"".join(token.bytes for token in taken) == part.encode()
            assert "".join(token.token for token in taken) == part
            ids = [token.id for token in taken]
            assert ids == sorted(set(ids))
            assert [token.logprob for token in taken] == [-1.0 * at for at in ids]
            assert all(token.bytes in tokens[token.id] for token in taken)
        place += len(part)


@settings(deadline=None)
@given(st.binary(min_size=1, max_size=12), st.lists(st.integers(0, 12), max_size=6))
def test_bytes_that_are_no_text_stay(data, borders):
    tokens = cut(data, borders)
    spans, text = spans_of(tokens)
    assert text == data.decode("utf-8", "replace")
    taken = spans.take(text, 0)
    assert b"".join(token.bytes for token in taken) == data
    assert "".join(token.token for token in taken) == text


def test_a_token_across_a_border_belongs_to_both_sides_in_part():
    spans, _ = spans_of([b"ab", b"c\n\nd", b"e"])
    first = spans.take("abc", 0)
    assert [(token.token, token.bytes, token.id) for token in first] == [("ab", b"ab", 0), ("c", b"c", 1)]
    second = spans.take("de", 5)
    assert [(token.token, token.bytes, token.id) for token in second] == [("d", b"d", 1), ("e", b"e", 2)]


def test_a_character_of_several_tokens_is_text_of_the_last():
    spans, _ = spans_of([b"\xf0\x9f", b"\x98", b"\x80!"])
    taken = spans.take("\U0001f600!", 0)
    assert [token.token for token in taken] == ["", "", "\U0001f600!"]
    assert [token.bytes for token in taken] == [b"\xf0\x9f", b"\x98", b"\x80!"]
