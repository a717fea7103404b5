"""The attacks by name, how many attempts each makes, and what it does in a line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from . import api, chaos, checkpoints, dropped, hangs, kills, shutdown, slow_readers, smuggling, states, turns
from .figures import Figures
from .limits import Limits

__all__ = ["ATTACKS", "Attack"]


@dataclass(frozen=True)
class Attack:
    run: Callable[[Limits], Figures]
    count: int
    summary: str


ATTACKS: dict[str, Attack] = {
    "checkpoints": Attack(checkpoints.attack, 3000, "changed checkpoint files, loaded and used"),
    "states": Attack(states.attack, 1500, "changed session and cache files, replaced weights"),
    "kills": Attack(kills.attack, 120, "processes killed while they save"),
    "chaos": Attack(chaos.attack, 2000, "64 clients that do everything wrong"),
    "hangs": Attack(hangs.attack, 200, "requests that ask for endless work"),
    "ends": Attack(hangs.attack_ends, 60, "SIGTERM while they are at work"),
    "dropped": Attack(dropped.attack, 600, "clients that leave the queue with large bodies"),
    "encoding": Attack(dropped.attack_encoding, 180, "texts that are costly to encode, many at once"),
    "shutdown": Attack(shutdown.attack, 52, "signals under all kinds of load"),
    "smuggling": Attack(smuggling.attack, 232, "requests whose end is in doubt"),
    "slow": Attack(slow_readers.attack, 8, "clients that read slowly, or not at all"),
    "turns": Attack(turns.attack, 2000, "texts that look like control tokens, in every place"),
    "api": Attack(api.attack, 8000, "hostile values for every parameter of the Python API"),
}
