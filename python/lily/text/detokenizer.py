"""Turns a stream of token ids into text as it arrives, one whole character at a time."""

from __future__ import annotations

import codecs
from typing import Protocol

__all__ = ["StreamingDetokenizer"]


class _TokenBytes(Protocol):
    def token_bytes(self, token: int, *, skip_special: bool = False) -> bytes: ...


class StreamingDetokenizer:
    """Decodes one stream of ids; its results, joined, equal `Tokenizer.decode` of all of them.

    A token may end inside a UTF-8 character: those bytes are held back until the character is complete. If the next
    bytes or `finish` show that it never will be, it becomes U+FFFD. A token costs only as much as its own bytes,
    however long the stream.
    """

    def __init__(self, tokenizer: _TokenBytes, *, skip_special: bool = False) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> str:
        """Return the text that `token` completes, which may be empty.

        Raises
        ------
        InvalidArgumentError
            The id is not a token; the stream is unchanged.
        """
        return self._decoder.decode(self._tokenizer.token_bytes(token, skip_special=self._skip_special))

    def finish(self) -> str:
        """Return what is still held back (an incomplete character, as U+FFFD) and start a new stream."""
        text = self._decoder.decode(b"", True)
        self._decoder.reset()
        return text
