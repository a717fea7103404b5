"""Bounds the simultaneous requirements of a schema, which the grammar library multiplies out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lily.chat.grammar_budget import GrammarBudget

__all__ = ["DEMANDS", "CombinationBounds"]

_ENDLESS = 500_000  # schemas
_MAX_PATTERNS = 2  # that one string has to match
_MAX_LEVELS = 150
_ORDER = ("$ref", "allOf", "anyOf", "oneOf")
DEMANDS = frozenset(_ORDER)  #: keywords that add requirements to the schema's own keywords


@dataclass(frozen=True)
class _Shape:
    """How a schema grows when multiplied out: its alternatives, the total of their schemas, patterns of one string."""

    options: int = 1
    size: int = 1
    patterns: int = 0


_ONE = _Shape()


class CombinationBounds:
    """Removes from a rewritten schema, in place, requirements whose product would be too large."""

    def __init__(
        self,
        definitions: Mapping[str, Any],
        budget: GrammarBudget,
        on_drop: Callable[[str, dict[str, Any]], None],
        *,
        combine: bool = True,
    ) -> None:
        """
        Parameters
        ----------
        definitions
            What ``#/$defs/NAME`` stands for.
        budget
            Of the whole grammar.
        on_drop
            Called with each removed keyword and its schema.
        combine
            False: keep only one requirement everywhere.
        """
        self._definitions = definitions
        self._on_drop = on_drop
        self._combine = combine
        self._budget = budget
        self._shapes: dict[tuple[int, bool], _Shape | None] = {}

    def apply(self, schema: Any) -> None:
        """Bound a schema and all schemas inside it, those behind references excepted."""
        self._shape(schema, False, 0)

    def _shape(self, schema: Any, expanded: bool, level: int) -> _Shape | None:
        """None for endless recursion. `expanded`: the schema itself is needed, not a reference to it."""
        if not isinstance(schema, dict):
            return _ONE
        key = (id(schema), expanded)
        if key in self._shapes:
            return self._shapes[key]
        if level > _MAX_LEVELS:
            return None
        self._shapes[key] = None  # while it is looked at
        own = self._own(schema, level)
        demands = self._demands(schema, own, expanded, level)
        found = _product(demands)
        if len(demands) > 1 and not self._fits(found, schema):
            self._take_out(schema)
            found = _product(self._demands(schema, own, expanded, level))
        self._shapes[key] = found
        return found

    def _own(self, schema: dict[str, Any], level: int) -> _Shape:
        """The schema's shape without additional requirements; inner schemas count by themselves."""
        patterns = schema.get("patternProperties", {})
        inner = [*schema.get("properties", {}).values(), *schema.get("prefixItems", ()), *patterns.values()]
        inner += [schema[word] for word in ("items", "additionalProperties") if word in schema]
        size = 1 + len(patterns) ** 2 + len(schema.get("required", ()))
        for item in inner:
            shape = self._shape(item, False, level + 1)
            size += 1 if shape is None else shape.size
        return _Shape(1, size, int("pattern" in schema))

    def _demands(self, schema: dict[str, Any], own: _Shape, expanded: bool, level: int) -> list[_Shape | None]:
        """The shapes that one value must fit at the same time."""
        has_own = not schema.keys() <= DEMANDS
        branches = schema.get("allOf", [])
        count = has_own + len(branches) + sum(word in schema for word in ("$ref", "anyOf", "oneOf"))
        expanded = expanded or count > 1
        demands: list[_Shape | None] = [own] if has_own or not count else []
        if "enum" in schema and count > 1 and schema.keys() & DEMANDS:
            demands.append(_Shape(len(schema["enum"]), len(schema["enum"])))
        if "$ref" in schema:
            target = self._definitions.get(schema["$ref"].removeprefix("#/$defs/"))
            demands.append(self._shape(target, True, level + 1) if expanded else _ONE)
        demands += [self._shape(branch, expanded, level + 1) for branch in branches]
        for word in ("anyOf", "oneOf"):
            if word in schema:
                demands.append(_sum([self._shape(branch, expanded, level + 1) for branch in schema[word]]))
        return demands

    def _fits(self, shape: _Shape | None, schema: dict[str, Any]) -> bool:
        if not self._combine or shape is None:
            return False
        return shape.patterns <= _MAX_PATTERNS and self._budget.takes_combined(shape.size)

    def _take_out(self, schema: dict[str, Any]) -> None:
        """Keep the schema's own keywords, or otherwise one requirement."""
        has_own = not schema.keys() <= DEMANDS
        kept = None if has_own else next(word for word in _ORDER if word in schema)
        for word in _ORDER:
            if word in schema and word != kept:
                del schema[word]
                self._on_drop(word, schema)
        if kept == "allOf" and len(schema["allOf"]) > 1:
            del schema["allOf"][1:]
            self._on_drop("allOf", schema)


def _product(shapes: list[_Shape | None]) -> _Shape | None:
    """All of several requirements."""
    options, size, patterns = 1, 0, 0
    for shape in shapes:
        if shape is None:
            return None
        size = size * shape.options + shape.size * options
        options *= shape.options
        patterns += shape.patterns
        if size > _ENDLESS:
            return None if len(shapes) > 1 else shape
    return _Shape(options, max(size, 1), patterns)


def _sum(shapes: list[_Shape | None]) -> _Shape | None:
    """One of several requirements."""
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes):
        return None
    return _Shape(
        sum(shape.options for shape in known),
        sum(shape.size for shape in known),
        max(shape.patterns for shape in known),
    )
