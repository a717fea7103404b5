"""Samples: the repeated measurements of one figure."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

__all__ = ["Samples"]


@dataclass
class Samples:
    """Rates in tokens a second, one for each run."""

    rates: list[float] = field(default_factory=list)
    major_faults: int = 0  # pages read from disk, over all runs

    def add(self, tokens: int, seconds: float, major_faults: int = 0) -> None:
        """Record one run."""
        self.rates.append(tokens / seconds)
        self.major_faults += major_faults

    @property
    def median(self) -> float:
        """The median rate."""
        return statistics.median(self.rates)

    def to_dict(self) -> dict[str, float | int]:
        """Median, lowest, highest, the number of runs and their page faults, ready for JSON."""
        return {
            "median": round(self.median, 3),
            "min": round(min(self.rates), 3),
            "max": round(max(self.rates), 3),
            "runs": len(self.rates),
            "major_faults": self.major_faults,
        }
