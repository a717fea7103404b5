"""Callbacks for the progress of long calls."""

from __future__ import annotations

from collections.abc import Callable

from lily.checks.arguments import check_callable

__all__ = ["Progress", "checked_progress"]

#: Called as ``progress(done, total)`` in tokens after every chunk of a long call.
Progress = Callable[[int, int], object]


def checked_progress(progress: Progress | None) -> Progress | None:
    """The callback; InvalidArgumentError if it can neither be called nor is None."""
    check_callable("progress", progress)
    return progress
