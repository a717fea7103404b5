"""The error of a measurement that could not be made."""

from __future__ import annotations

from lily.errors import LilyError

__all__ = ["BenchError"]


class BenchError(LilyError):
    """A peer could not run, or a measurement contradicts itself; the message says what to do."""
