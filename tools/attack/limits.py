"""How much of an attack is run."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

__all__ = ["Limits"]


@dataclass(frozen=True)
class Limits:
    """`count` attempts at most, from seed `first` on, and no new one after `seconds`."""

    count: int
    seconds: float = 3600.0
    first: int = 0
    started: float = field(default_factory=time.monotonic)

    @property
    def deadline(self) -> float:
        """When no new attempt begins, by the monotonic clock."""
        return self.started + self.seconds

    def seeds(self) -> range:
        """One number for each attempt; the same number does the same."""
        return range(self.first, self.first + self.count)

    @property
    def is_over(self) -> bool:
        """Whether the time is."""
        return time.monotonic() > self.deadline
