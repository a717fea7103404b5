"""Returns freed memory to the system after large requests; Linux's C library would keep it."""

from __future__ import annotations

import asyncio
import ctypes
import threading
from collections.abc import Callable

__all__ = ["FreedMemory"]

_LARGE = 1 << 20  # bytes of a request
_SECONDS = 0.2  # seconds after the end of one; others may end meanwhile


class FreedMemory:
    """Does so a moment after large requests have ended, in its own thread."""

    def __init__(self) -> None:
        self._trim = _system_trim()
        self._planned = False

    def ended(self, size: int) -> None:
        """A request that took that many bytes is over; call it from the event loop."""
        if size >= _LARGE and self._trim is not None and not self._planned:
            self._planned = True
            asyncio.get_running_loop().call_later(_SECONDS, self._start)

    def _start(self) -> None:
        self._planned = False
        threading.Thread(target=self._trim, args=(0,), name="lily-trim", daemon=True).start()


def _system_trim() -> Callable[[int], object] | None:
    try:
        trim: Callable[[int], object] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # other systems and libraries do this themselves
        return None
    return trim
