"""The work that the schemas of one grammar may make."""

from __future__ import annotations

from collections.abc import Sequence

from lily.errors import InvalidArgumentError

__all__ = ["GrammarBudget", "SchemaTooLargeError"]

MAX_NODES = 10_000  # schemas, the target of each reference once
_MAX_COMBINED = 10_000  # schemas that demands on the same values are multiplied out to
_MAX_PATTERNS = 500  # regular expressions of strings and of names are tried one by one
_MAX_PATTERN_PAIRS = 500  # those of names in one object with each other, too
_MAX_PATTERN_LENGTH = 5_000  # characters


class SchemaTooLargeError(InvalidArgumentError):
    """A schema has more parts than a grammar is made of."""


class GrammarBudget:
    """Counts what is left; asking for more than that is refused."""

    def __init__(self) -> None:
        self.nodes = 0
        self._combined = 0
        self._patterns = 0
        self._pairs = 0

    def take_node(self) -> None:
        """Count one schema.

        Raises
        ------
        SchemaTooLargeError
            There are too many.
        """
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise SchemaTooLargeError(f"the JSON schema is too large: it has more than {MAX_NODES} parts")

    def takes_combined(self, size: int) -> bool:
        """Count schemas that come from multiplying out; False if they are too many."""
        self._combined += size
        return self._combined <= _MAX_COMBINED

    def takes_patterns(self, patterns: Sequence[str]) -> bool:
        """Count patterns that must not match the same text; False if there are too many, or one is too long."""
        self._patterns += len(patterns)
        self._pairs += len(patterns) * (len(patterns) - 1) // 2
        fits = self._patterns <= _MAX_PATTERNS and self._pairs <= _MAX_PATTERN_PAIRS
        return fits and all(len(pattern) <= _MAX_PATTERN_LENGTH for pattern in patterns)
