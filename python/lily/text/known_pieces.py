"""KnownPieces: the ids of texts that were encoded before; evicts the least recently used."""

from __future__ import annotations

import hashlib
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable

__all__ = ["KnownPieces"]

_SHORTEST = 24  # characters: encoding a shorter text is as fast as looking it up
_OVERHEAD_BYTES = 200  # of an entry, beside its ids
_LIMIT_BYTES = 1 << 24


class KnownPieces:
    """Encodes texts with a function and remembers the results; safe to use from any thread.

    A conversation's messages return with each of its turns, and its tools with every conversation.
    """

    def __init__(self, encode: Callable[[str], list[int]], limit_bytes: int = _LIMIT_BYTES) -> None:
        self._encode = encode
        self._limit = limit_bytes
        self._pieces: OrderedDict[bytes, array[int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def ids(self, text: str) -> list[int]:
        """The ids of a text; errors are those of the function."""
        if len(text) < _SHORTEST:
            return self._encode(text)
        key = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        with self._lock:
            known = self._pieces.get(key)
            if known is not None:
                self._pieces.move_to_end(key)
                return known.tolist()
        ids = self._encode(text)
        piece = array("i", ids)
        with self._lock:
            if key not in self._pieces and _size(piece) <= self._limit:
                self._pieces[key] = piece
                self._bytes += _size(piece)
                while self._bytes > self._limit:
                    self._bytes -= _size(self._pieces.popitem(last=False)[1])
        return ids

    @property
    def bytes(self) -> int:
        """What is held now."""
        return self._bytes


def _size(piece: array[int]) -> int:
    return len(piece) * piece.itemsize + _OVERHEAD_BYTES
