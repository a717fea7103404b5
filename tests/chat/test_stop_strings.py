"""Stop strings: never let through, wherever the text is cut; equal to the definition on the whole text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lily.chat.stop_strings import StopStrings, as_stop_strings
from lily.errors import InvalidArgumentError
from parsing import pieces_of


def stream(pieces, stops):
    filter_ = StopStrings(stops)
    text = "".join(filter_.feed(piece) for piece in pieces)
    return (text, filter_.matched) if filter_.matched else (text + filter_.finish(), None)


def expected(text, stops):
    """The string that is complete first, by trying every beginning of the text."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(
    st.text("abc", max_size=30),
    st.lists(st.text("abc", min_size=1, max_size=5), max_size=4),
    st.lists(st.integers(0, 30)),
)
def test_cuts_do_not_matter(text, stops, cuts):
    assert stream(pieces_of(text, cuts), stops) == expected(text, stops)
    assert stream(list(text), stops) == expected(text, stops)


def test_across_borders():
    assert stream(["some ST", "", "O", "P more"], ["STOP"]) == ("some ", "STOP")
    assert stream(["some ST", "O"], ["STOP"]) == ("some STO", None)
    assert stream(["aaaab"], ["aab"]) == ("aa", "aab")


def test_no_text_is_held_without_need():
    stops = StopStrings(["\n\nUser:"])
    assert stops.feed("abc\n") == "abc"
    assert stops.feed("d") == "\nd"


def test_arguments():
    assert as_stop_strings(None) == ()
    assert as_stop_strings("x") == ("x",)
    assert as_stop_strings(["x", "y"]) == ("x", "y")
    for wrong in ("", [""], [3]):
        with pytest.raises(InvalidArgumentError, match="stop"):
            as_stop_strings(wrong)
