"""Limits the work that the schemas of one grammar may cause."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from lily.chat.grammar_library import json_problem
from lily.errors import InvalidArgumentError

__all__ = ["GrammarBudget", "SchemaTooLargeError"]

MAX_NODES = 10_000  # schemas; the target of each reference counts once
_MAX_COMBINED = 10_000  # schemas that arise when requirements on the same values are multiplied out
_MAX_CHECKS = 400  # different sets of keywords that are tried one by one
_MAX_PATTERN_PAIRS = 500  # patterns of names in one object, which are tried against each other
_MAX_PATTERN_LENGTH = 5_000  # characters
_MAX_LITERALS = 250_000  # characters of names and values
_MAX_LITERAL = 10_000  # characters of one
_MAX_STRUCTURED = 5_000  # parts of values that are arrays or objects
_MAX_PARAMETERS = 5_000  # of all tools
_NUMBER_LENGTH = 20


class SchemaTooLargeError(InvalidArgumentError):
    """A schema has more parts than a grammar may have."""


class GrammarBudget:
    """Counts down the remaining work and refuses more."""

    def __init__(self) -> None:
        self.nodes = 0
        self._combined = 0
        self._pairs = 0
        self._literals = 0
        self._structured = 0
        self._parameters = 0
        self._checked: dict[str, bool] = {}

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
        fits = self._combined + size <= _MAX_COMBINED
        self._combined += size if fits else 0
        return fits

    def takes_patterns(self, patterns: Sequence[str]) -> bool:
        """Count patterns that must not match the same text; False if there are too many, or one is too long."""
        self._pairs += len(patterns) * (len(patterns) - 1) // 2
        return self._pairs <= _MAX_PATTERN_PAIRS and all(len(pattern) <= _MAX_PATTERN_LENGTH for pattern in patterns)

    def is_supported(self, schema: Mapping[str, Any]) -> bool:
        """Whether the library can compile a small schema; true if no more trials are left."""
        key = json.dumps(schema)
        if key not in self._checked:
            if len(self._checked) >= _MAX_CHECKS:
                return False
            problem = json_problem(schema)
            self._checked[key] = not problem or "Unsatisfiable" in problem
        return self._checked[key]

    def takes_literals(self, values: Sequence[Any]) -> bool:
        """Count the values of an enum, or names of properties; False if they are too many or one is too long."""
        total, longest, waiting = 0, 0, list(values)
        while waiting:
            value = waiting.pop()
            if isinstance(value, str):
                longest = max(longest, len(value))
                total += len(value) + 1
                continue
            total += _NUMBER_LENGTH
            if isinstance(value, Mapping):
                waiting += [*value, *value.values()]
            elif isinstance(value, (list, tuple)):
                waiting += value
            self._structured += isinstance(value, (Mapping, list, tuple))
        self._literals += total
        fits = self._literals <= _MAX_LITERALS and self._structured <= _MAX_STRUCTURED
        if not fits or longest > _MAX_LITERAL:
            self._literals -= total
            return False
        return True

    def takes_parameters(self, count: int) -> bool:
        """Count the parameters of a tool; False if there are too many."""
        fits = self._parameters + count <= _MAX_PARAMETERS
        self._parameters += count if fits else 0
        return fits
