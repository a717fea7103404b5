"""Finds the tokens that spell a part of an output's text, so that log-probabilities match their text."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from lily.chat.events import TokenLogprob

__all__ = ["TokenSpans"]


class TokenSpans:
    """The tokens of one output whose text was not requested yet.

    If a stop string, a tag or dropped white space begins or ends inside a token, only the visible part of its bytes is
    given. So the bytes of a part's tokens, joined, are that part in UTF-8, and their texts, joined, are the part
    itself; a character made of several tokens belongs to the last one. Only bytes that are not UTF-8, which are U+FFFD
    in the text, stay unchanged.
    """

    def __init__(self) -> None:
        self._tokens: deque[tuple[TokenLogprob, int]] = deque()  # and the bytes of the output before each
        self._ends: deque[int] = deque()  # bytes of the output up to the end of each character
        self._first = 0  # characters of the output before those
        self._begin = 0  # bytes before them
        self._end = 0  # bytes so far
        self._undecoded = b""  # at the end

    def add(self, token: TokenLogprob, text: str) -> None:
        """Take the next token and the text that the detokenizer returned for it."""
        self._tokens.append((token, self._end))
        self._end += len(token.bytes)
        self._undecoded += token.bytes
        self.add_text(text)

    def add_text(self, text: str) -> None:
        """Take text that the detokenizer returned without a token, at its end."""
        at = self._end - len(self._undecoded)
        for character in text:
            length = _length(self._undecoded, character)
            self._undecoded = self._undecoded[length:]
            at += length
            self._ends.append(at)

    def take(self, text: str, start: int) -> tuple[TokenLogprob, ...]:
        """The tokens of a part of the output; earlier parts cannot be requested any more.

        Parameters
        ----------
        text
            The part.
        start
            Characters of the output before it.
        """
        self._take_ends(start - self._first)
        begin = self._begin
        ends = self._take_ends(len(text))
        last = self._begin
        taken: list[TokenLogprob] = []
        first = 0  # character of the token
        while self._tokens and self._tokens[0][1] < last:
            token, place = self._tokens[0]
            end = place + len(token.bytes)
            shown = token.bytes[max(0, begin - place) : last - place]
            if end > begin and shown:
                behind = first
                while behind < len(ends) and ends[behind] <= end:
                    behind += 1
                taken.append(replace(token, token=text[first:behind], bytes=shown))
                first = behind
            if end > last:
                break
            self._tokens.popleft()
        return tuple(taken)

    def _take_ends(self, count: int) -> list[int]:
        ends = [self._ends.popleft() for _ in range(min(count, len(self._ends)))]
        self._first += len(ends)
        self._begin = ends[-1] if ends else self._begin
        return ends


def _length(data: bytes, character: str) -> int:
    """How many bytes at the beginning of the data a character was decoded from."""
    encoded = character.encode()
    if data.startswith(encoded):
        return len(encoded)
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.end - error.start
    return len(data)
