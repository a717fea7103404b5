"""What a request that is being prepared asks between its steps: whether it is still wanted, and for memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from lily.server.byte_budget import Charge

__all__ = ["Steps"]


class Steps:
    """Of one request, in the thread that prepares it.

    Attributes
    ----------
    check : callable
        Raises CancelledError if the client has disconnected.
    """

    def __init__(self, check: Callable[[], None], charge: Charge) -> None:
        self.check = check
        self._charge = charge

    def take(self, size: int) -> None:
        """Hold that many bytes more, up to the end of the request; errors as for `Charge.resize`."""
        if size > 0:
            self._charge.resize(self._charge.size + size)

    @contextlib.contextmanager
    def taken(self, size: int) -> Iterator[None]:
        """Hold that many bytes more within the block."""
        before = self._charge.size
        self.take(size)
        try:
            yield
        finally:
            self._charge.resize(before)
