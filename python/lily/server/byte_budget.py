"""The memory that all requests together may use, from the first byte of a body to the end of its answer."""

from __future__ import annotations

import threading

from lily.server.errors import ApiError

__all__ = ["ByteBudget", "Charge", "parsed_bytes"]

_SMALL = 1 << 20
_STEP = 1 << 20  # bytes searched at once; no other thread runs meanwhile
_COMMA, _LIST, _OBJECT = 96, 48, 128  # bytes of a value in a container, and of the containers
_ASTRAL = tuple(bytes([first]) for first in range(0xF0, 0xF5))  # first bytes of characters beyond U+FFFF


class ByteBudget:
    """Counts the bytes of the requests in progress. The last quarter is kept for small requests."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.used = 0
        self.lock = threading.Lock()

    @property
    def most_of_large(self) -> int:
        """Bytes that large requests may use together."""
        return self.most - self.most // 4


class Charge:
    """The bytes charged to one request; any thread may change them."""

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._released = False
        self.size = 0
        self.largest = 0  #: that it ever was

    def resize(self, size: int) -> None:
        """Set the charge to `size` bytes; does nothing after `release`.

        Raises
        ------
        ApiError
            413: no request may have that many. 503: other requests have too many; the charge is unchanged.
        """
        budget = self._budget
        most = budget.most if size <= _SMALL else budget.most_of_large
        with budget.lock:
            if self._released:
                return
            if size > self.size:
                _check(size, budget.used - self.size, most)
            budget.used += size - self.size
            self.size = size
            self.largest = max(self.largest, size)

    def release(self) -> None:
        """Release the charge."""
        with self._budget.lock:
            self._released = True
            self._budget.used -= self.size
            self.size = 0


def parsed_bytes(data: bytes | bytearray) -> int:
    """About how many bytes the value of a JSON text takes, at most."""
    width = 1
    if not data.isascii() or b"\\u" in data:
        # One wide character makes all characters of its string wide.
        width = 4 if b"\\u" in data or any(first in data for first in _ASTRAL) else 2
    size = len(data) * width
    for start in range(0, len(data), _STEP):
        end = start + _STEP
        size += data.count(b",", start, end) * _COMMA
        size += data.count(b"[", start, end) * _LIST + data.count(b"{", start, end) * _OBJECT
    return size


def _check(size: int, others: int, most: int) -> None:
    if size > most:
        message = (
            f"the request would take about {size >> 20} MiB of memory; all requests together may take {most >> 20} MiB"
        )
        raise ApiError(413, message, code="request_too_large")
    if others + size > most:
        message = "other requests are using the memory that this one needs; try again later"
        raise ApiError(503, message, code="overloaded", retry_after=2)
