"""Work in a separate thread with a deep stack; the caller may stop waiting for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Compilation"]

Result = TypeVar("Result")

# The compiler recurses through a whole grammar. Only the used part of the stack takes memory.
_STACK_BYTES = (256 << 20, 64 << 20)  # the second if there is no room for the first; the most ever needed was 48 MiB
_stack_size = threading.Lock()


class Compilation(Generic[Result]):
    """Runs a function once, starting immediately."""

    def __init__(self, function: Callable[[], Result]) -> None:
        self._function: Callable[[], Result] | None = function
        self._result: Result | None = None
        self._error: BaseException | None = None
        self._done = threading.Event()
        try:
            _start(self._run, _STACK_BYTES[0])
        except RuntimeError:
            _start(self._run, _STACK_BYTES[1])

    def wait(self, seconds: float) -> bool:
        """Whether the function has ended; waits at most that long."""
        return self._done.wait(seconds)

    def result(self) -> Result:
        """The function's result, once it has ended; raises what it raised."""
        if self._error is not None:
            raise self._error
        if self._result is None:
            raise AssertionError("the function has not ended")
        return self._result

    def _run(self) -> None:
        try:
            if self._function is not None:
                self._result = self._function()
        except BaseException as error:
            self._error = error
        finally:
            self._function = None
            self._done.set()


def _start(run: Callable[[], None], stack_bytes: int) -> None:
    thread = threading.Thread(target=run, name="lily-grammar", daemon=True)
    with _stack_size:
        before = threading.stack_size(stack_bytes)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
