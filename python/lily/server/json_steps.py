"""Parses long JSON texts in steps: the standard library's parser blocks all other threads until it is done."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any

__all__ = ["parse_in_steps"]

_STEP = 1 << 16  # approximate bytes that one call of the library's parser sees
_DEPTH = 64  # of containers that are longer than a step
_LONGEST_ESCAPE = len(r"\u1234")
_CUTS = {"[": ("},", "],", '",', ","), "{": ("},", "],", '",', ",")}
_CLOSING = {"[": "]", "{": "}"}


def parse_in_steps(data: bytes | bytearray, decoder: json.JSONDecoder, check: Callable[[], None]) -> Any:
    """The value of a JSON text.

    Parameters
    ----------
    data
        The text, in UTF-8, UTF-16 or UTF-32.
    decoder
        Parses the steps.
    check
        Called between steps; an exception ends the parsing.

    Raises
    ------
    ValueError
        The text is not JSON.
    RecursionError
        It is nested too deeply.
    """
    return _Steps(data, decoder, check).parse()


class _Steps:
    """A moving window of the text, and the current place in it."""

    def __init__(self, data: bytes | bytearray, decoder: json.JSONDecoder, check: Callable[[], None]) -> None:
        self._data = memoryview(data)
        self._decode = codecs.getincrementaldecoder(json.detect_encoding(data))("surrogatepass").decode
        self._read = 0  # bytes of the data that were decoded
        self._text = ""  # the window
        self._at = 0
        self._scan: Callable[[str, int], tuple[Any, int]] = decoder.scan_once  # type: ignore[attr-defined]
        self._check = check
        self._one_by_one = False  # whether items fit into the window only one at a time

    def parse(self) -> Any:
        """The value of the whole text."""
        value = self._value(0)
        if self._next():
            raise ValueError("text after the value")
        return value

    @property
    def _at_end(self) -> bool:
        return self._read == len(self._data)

    def _fill(self) -> None:
        """Make sure that the window has a full step from here on, or the rest."""
        if len(self._text) - self._at >= _STEP or self._at_end:
            return
        self._check()
        part = self._data[self._read : self._read + 2 * _STEP]
        self._read += len(part)
        self._text = self._text[self._at :] + self._decode(part, self._at_end)
        self._at = 0
        self._one_by_one = False
        if len(self._text) < _STEP:  # wide encodings
            self._fill()

    def _next(self) -> str:
        """The next character that is not white space; an empty string at the end."""
        while True:
            self._fill()
            rest = len(self._text)
            while self._at < rest and self._text[self._at] in " \t\n\r":
                self._at += 1
            if self._at < rest or self._at_end:
                return self._text[self._at : self._at + 1]

    def _value(self, depth: int) -> Any:
        first = self._next()
        self._fill()
        try:
            value, end = self._scan(self._text, self._at)
        except (StopIteration, ValueError):
            pass  # it ends beyond the window, or nowhere
        else:
            if end < len(self._text) or self._at_end:  # a number may continue
                self._at = end
                return value
        if first in _CLOSING:
            if depth == _DEPTH:
                raise RecursionError
            return self._container(first, depth + 1)
        if first == '"':
            return self._string()
        raise ValueError("no value")

    def _container(self, opening: str, depth: int) -> Any:
        items: Any = [] if opening == "[" else {}
        add = items.extend if opening == "[" else items.update
        closing = _CLOSING[opening]
        self._at += 1
        if self._next() == closing:
            self._at += 1
            return items
        while True:
            self._fill()
            add(self._several(opening) or self._single(opening, depth))
            following = self._next()
            self._at += 1
            if following == closing:
                return items
            if following != ",":
                raise ValueError("no comma")

    def _several(self, opening: str) -> Any:
        """The items of a container up to a comma near the window's end; None if that was not found."""
        if self._one_by_one:
            return None
        for cut in _CUTS[opening]:
            end = self._text.rfind(cut, self._at) + len(cut) - 1
            if end < self._at + len(cut):
                continue
            piece = opening + self._text[self._at : end] + _CLOSING[opening]
            try:
                value, length = self._scan(piece, 0)
            except (StopIteration, ValueError):
                continue
            if length == len(piece) and value:
                self._at = end
                return value
        self._one_by_one = True
        return None

    def _single(self, opening: str, depth: int) -> Any:
        if opening == "[":
            return [self._value(depth)]
        if self._next() != '"':
            raise ValueError("no name")
        name = self._value(depth)
        if self._next() != ":":
            raise ValueError("no colon")
        self._at += 1
        return {name: self._value(depth)}

    def _string(self) -> str:
        pieces: list[str] = [""]
        self._at += 1
        whole = False
        while not whole:
            self._fill()
            try:
                piece, self._at = scanstring(self._text, self._at)
                whole = True
            except ValueError:
                if self._at_end:
                    raise
                piece = self._part_of_string()
            if "\ud800" <= pieces[-1][-1:] <= "\udbff" and "\udc00" <= piece[:1] <= "\udfff":
                pair = (pieces[-1][-1] + piece[0]).encode("utf-16", "surrogatepass").decode("utf-16")
                pieces[-1], piece = pieces[-1][:-1] + pair, piece[1:]
            pieces.append(piece)
        return "".join(pieces)

    def _part_of_string(self) -> str:
        """The beginning of a string, up to a place near the window's end that is within no escape."""
        for end in range(len(self._text), len(self._text) - _LONGEST_ESCAPE, -1):
            try:
                piece, length = scanstring(self._text[self._at : end] + '"', 0)
            except ValueError:
                continue
            if length == end - self._at + 1:
                self._at = end
                return str(piece)
        raise ValueError("no string")
