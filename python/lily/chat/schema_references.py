"""Resolves the references inside one JSON schema."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any
from urllib.parse import unquote

__all__ = ["References"]


class References:
    """The ``$ref`` of a schema document: JSON pointers, anchors and the ids of its parts.

    Each text is looked up once. Nothing outside the document is ever read.
    """

    def __init__(self, root: Any) -> None:
        self._root = root
        self._found: dict[str, Any] = {}

    def find(self, reference: str) -> Any:
        """The schema that a reference points at; None for nothing."""
        if reference not in self._found:
            self._found[reference] = self._look_up(reference)
        return self._found[reference]

    def follow(self, schema: Any) -> Any:
        """Follows references that have nothing beside them; None if they lead nowhere or in a circle."""
        seen: set[int] = set()
        while isinstance(schema, Mapping) and set(schema) == {"$ref"} and isinstance(schema["$ref"], str):
            if id(schema) in seen:
                return None
            seen.add(id(schema))
            schema = self.find(schema["$ref"])
        return schema

    def _look_up(self, reference: str) -> Any:
        base, _, fragment = reference.partition("#")
        found = self._named.get(base) if base else self._root
        if found is None or not fragment:
            return found
        if not fragment.startswith("/"):
            return self._named.get(f"#{fragment}")
        if fragment == "/":  # some writers mean the root
            return found
        for part in fragment[1:].split("/"):
            found = _part_of(found, unquote(part).replace("~1", "/").replace("~0", "~"))
            if found is None:
                return None
        return found

    @cached_property
    def _named(self) -> dict[str, Any]:
        """Parts of the document by anchor, which begins with a number sign, or by id."""
        named: dict[str, Any] = {}
        seen: set[int] = set()
        waiting = [self._root]
        while waiting:
            item = waiting.pop()
            if not isinstance(item, (Mapping, list, tuple)) or id(item) in seen:
                continue
            seen.add(id(item))
            if not isinstance(item, Mapping):
                waiting.extend(item)
                continue
            for keyword, mark in (("$anchor", "#"), ("$dynamicAnchor", "#"), ("$id", ""), ("id", "")):
                name = item.get(keyword)
                if isinstance(name, str):
                    named.setdefault(mark + name.removesuffix("#"), item)
            waiting.extend(item.values())
        return named


def _part_of(value: Any, key: str) -> Any:
    if isinstance(value, Mapping):
        return value.get(key)
    if isinstance(value, (list, tuple)) and key.isdecimal() and len(key) < 10 and int(key) < len(value):
        return value[int(key)]
    return None
