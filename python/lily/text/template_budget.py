"""Limits of one rendering of a chat template: steps, characters and processor time, far above any real need."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from jinja2.exceptions import SecurityError

__all__ = ["OUTPUT_LIMIT", "REPEAT_LIMIT", "SHORT", "counted", "current_budget", "rendering_budget", "text_size"]

OUTPUT_LIMIT = 64 * 1024 * 1024  # characters of the result, and of any intermediate value
REPEAT_LIMIT = 1_000_000  # characters or items made by one multiplication, or by one width
_STEPS = 4_000_000  # bodies of loops and macros
_CHARACTERS = 4 * OUTPUT_LIMIT  # characters of all intermediate texts
_SECONDS = 5.0  # seconds of processor time: waiting for other threads does not count
_STEPS_BETWEEN_CLOCKS = 64
SHORT = 1024  # characters of texts that need not be counted: the steps bound their number
_ITEM_CHARACTERS = 8  # characters that an item of a list counts as
_NODES = 2_000_000  # values within one value that becomes text


class _Budget:
    def __init__(self) -> None:
        self._steps = _STEPS
        self._characters = _CHARACTERS
        self._deadline: float | None = None  # starts at the first look at the clock, because a look takes time

    def step(self) -> None:
        """Count one execution of a loop's or a macro's body."""
        self._steps -= 1
        if not self._steps & _STEPS_BETWEEN_CLOCKS - 1:
            if self._steps < 0:
                raise SecurityError(f"the template takes more than {_STEPS} steps")
            self._check_time()

    def take(self, characters: int) -> None:
        """Count a text of this length that was made or is about to be."""
        if characters > OUTPUT_LIMIT:
            raise SecurityError(f"a text of more than {OUTPUT_LIMIT} characters is not allowed")
        self._characters -= characters
        if self._characters < 0:
            raise SecurityError(f"the texts that the template makes exceed {_CHARACTERS} characters in total")
        if characters > REPEAT_LIMIT:
            self._check_time()

    def _check_time(self) -> None:
        now = time.thread_time()
        if self._deadline is None:
            self._deadline = now + _SECONDS
        if now > self._deadline:
            raise SecurityError(f"the template takes more than {_SECONDS:g} seconds")


class _Local(threading.local):
    budget: _Budget | None = None


_local = _Local()


@contextmanager
def rendering_budget() -> Iterator[None]:
    """Everything that a template does inside the block, in this thread, counts towards one budget."""
    outer = _local.budget
    _local.budget = _Budget()
    try:
        yield
    finally:
        _local.budget = outer


def current_budget() -> _Budget:
    """The budget of this thread's rendering; a fresh one outside of any, as for constants during compilation."""
    return _local.budget or _Budget()


def counted(value: Any) -> Any:
    """The value; counts its characters or items if it is a text or a list."""
    if isinstance(value, (str, list)) and len(value) > SHORT:
        current_budget().take(len(value) if isinstance(value, str) else _ITEM_CHARACTERS * len(value))
    return value


def text_size(value: Any) -> int:
    """Approximate characters of a value as text; refuses values whose text would be endless.

    A list that contains the same list many times over is small in memory and endless as text.
    """
    total = nodes = 0
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            total += len(item)
        elif isinstance(item, dict):
            stack.extend(item)
            stack.extend(item.values())
        elif isinstance(item, (list, tuple, set, frozenset)):
            stack.extend(item)
        else:
            total += item.bit_length() // 3 if isinstance(item, int) else 8
        nodes += 1
        if nodes > _NODES or total > OUTPUT_LIMIT or len(stack) > 4 * _NODES:
            raise SecurityError("a value is too large to be rendered")
    return total + 4 * nodes
