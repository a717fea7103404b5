"""What an attack saw: the figures of one line of the table, and the promises that it found broken."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

__all__ = ["MIB", "Figures", "header"]

MIB = 1 << 20
COLUMNS = (
    "attack",
    "tried",
    "refused",
    "fine",
    "crashes",
    "hangs",
    "raw",
    "RSS MiB before/peak/after",
    "/health s",
    "s",
)
WIDTHS = (12, 7, 8, 7, 8, 6, 5, 26, 10, 7)
SHOWN_FAULTS = 20


@dataclass
class Figures:
    """One attack's figures. `refused` and `fine` are the proper ends of an attempt, the others break a promise."""

    name: str
    tried: int = 0
    refused: int = 0
    fine: int = 0
    crashes: int = 0
    hangs: int = 0
    raw: int = 0  # errors that no document names: a raw exception, a status 500, a wrong result
    rss: tuple[int, int, int] = (0, 0, 0)  # bytes before, at most and after
    health: float = 0.0  # seconds of the slowest answer of /health
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)

    def count(self, outcome: str, what: str = "") -> None:
        """Count one attempt: "refused", "fine", "crash", "hang", or "raw: ..." with what went wrong."""
        self.tried += 1
        kind = outcome.split(":")[0]
        self.outcomes[outcome] += 1
        names = {"refused": "refused", "fine": "fine", "crash": "crashes", "hang": "hangs"}
        name = names.get(kind, "raw")
        setattr(self, name, getattr(self, name) + 1)
        if name not in ("refused", "fine"):
            self.broken(f"{what}: {outcome}" if what else outcome)

    def broken(self, fault: str) -> None:
        """Note a broken promise."""
        self.faults.append(fault)

    def saw(self, before: int, peak: int, after: int) -> None:
        """Note a process's memory; of several the one with the highest peak counts."""
        if peak >= self.rss[1]:
            self.rss = (before, peak, after)

    def line(self) -> str:
        """The table's line."""
        memory = "/".join(str(round(size / MIB)) for size in self.rss)
        numbers = (self.tried, self.refused, self.fine, self.crashes, self.hangs, self.raw)
        values = (self.name, *numbers, memory, f"{self.health:.2f}", f"{self.seconds:.0f}")
        return _row(values)

    def details(self) -> list[str]:
        """Notes, and the broken promises, each kind once."""
        kinds = list(dict.fromkeys(self.faults))
        more = [f"  ... {len(kinds) - SHOWN_FAULTS} more"] if len(kinds) > SHOWN_FAULTS else []
        return [*(f"  {note}" for note in self.notes), *(f"  BROKEN {fault}" for fault in kinds[:SHOWN_FAULTS]), *more]


def header() -> str:
    """The table's head."""
    return _row(COLUMNS)


def _row(values: tuple[object, ...]) -> str:
    first, *rest = (str(value) for value in values)
    return " ".join(
        [first.ljust(WIDTHS[0]), *(text.rjust(width) for text, width in zip(rest, WIDTHS[1:], strict=True))]
    )
