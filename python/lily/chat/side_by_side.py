"""Several answers at once: takes one event from each stream in rotation, until all have ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

__all__ = ["side_by_side"]

T = TypeVar("T")


def side_by_side(streams: Sequence[Iterator[T]]) -> Iterator[tuple[int, T]]:
    """(index of the stream, item), round after round."""
    running = dict(enumerate(streams))
    while running:
        for index, stream in list(running.items()):
            for item in stream:
                yield index, item
                break
            else:
                del running[index]
