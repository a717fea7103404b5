"""Turns a stream of token ids into text as it arrives, one whole character at a time."""

from __future__ import annotations

import codecs
from typing import Protocol

__all__ = ["StreamingDetokenizer"]


class _TokenBytes(Protocol):
    def token_bytes(self, token: int, *, skip_special: bool = False) -> bytes: ...


class StreamingDetokenizer:
    """Decodes one stream of ids; what it returns, joined, is what `Tokenizer.decode` gives for all of them.

    A token may end inside a UTF-8 character: those bytes are held back until the character is complete, or
    until the next bytes or `finish` show that it never will be, which gives U+FFFD. The cost of a token is
    that of its own bytes, however long the stream.
    """

    def __init__(self, tokenizer: _TokenBytes, *, skip_special: bool = False) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> str:
        """Return the text that `token` completes, perhaps none.

        Raises
        ------
        InvalidArgumentError
            The id stands for no token; the stream is unchanged.
        """
        return self._decoder.decode(self._tokenizer.token_bytes(token, skip_special=self._skip_special))

    def finish(self) -> str:
        """Return what is still held back (an incomplete character, as U+FFFD) and start a new stream."""
        text = self._decoder.decode(b"", True)
        self._decoder.reset()
        return text
