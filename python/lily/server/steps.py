"""What the preparation of a request asks for between its steps: whether the client still waits, and memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from lily.server.byte_budget import Charge

__all__ = ["Steps"]


class Steps:
    """The steps of one request, in the thread that prepares it.

    Attributes
    ----------
    check : callable
        Raises CancelledError if the client has disconnected.
    """

    def __init__(self, check: Callable[[], None], charge: Charge) -> None:
        self.check = check
        self._charge = charge

    def take(self, size: int) -> None:
        """Charge that many more bytes until the end of the request; errors as for `Charge.resize`."""
        if size > 0:
            self._charge.resize(self._charge.size + size)

    @contextlib.contextmanager
    def taken(self, size: int) -> Iterator[None]:
        """Charge that many more bytes within the block."""
        before = self._charge.size
        self.take(size)
        try:
            yield
        finally:
            self._charge.resize(before)
