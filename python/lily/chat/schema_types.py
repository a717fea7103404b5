"""The types that a JSON schema allows, under JSON schema's names or those of vendors and programmers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from lily.chat.schema_references import References

__all__ = ["ANY", "TYPES", "json_types", "leaf_schemas", "types_of"]

TYPES = ("string", "integer", "number", "boolean", "null", "array", "object")
ANY = "any"

_NAMES = {
    "string": "string str text varchar char enum date time datetime date-time uri url uuid email",
    "integer": "integer int bigint smallint long short unsigned",
    "number": "number num numeric float double decimal real",
    "boolean": "boolean bool",
    "null": "null none nil nonetype",
    "array": "array arr list tuple set sequence",
    "object": "object obj dict dictionary map mapping struct record",
    ANY: "any mixed *",
}
_BY_NAME = {name: kind for kind, names in _NAMES.items() for name in names.split()}
_AS_JSON_HAS_THEM = {kind: (kind,) for kind in TYPES}
_SIZED = re.compile(r"(u?int|float)\d{1,3}")
_GENERIC = re.compile(r"(?:typing\.)?(\w+)\s*[\[<(].*", re.DOTALL)
_LONGEST_NAME = 100


def json_types(name: Any) -> tuple[str, ...]:
    """The JSON types, or `ANY`, that a type's name means; empty if unknown.

    ``str``, ``int``, ``float``, ``dict[str, int]``, ``List``, ``string[]``, ``Optional[int]``, ``int | None`` and
    similar names occur in real tools.
    """
    if isinstance(name, str) and name in _AS_JSON_HAS_THEM:
        return _AS_JSON_HAS_THEM[name]
    if not isinstance(name, str) or len(name) > _LONGEST_NAME:
        return ()
    word = name.strip().lower()
    if word in _BY_NAME:
        return (_BY_NAME[word],)
    if "|" in word and "[" not in word:
        parts = [json_types(part) for part in word.split("|")]
        return tuple(dict.fromkeys(kind for part in parts for kind in part)) if all(parts) else ()
    if word.endswith("[]"):
        return ("array",)
    sized, generic = _SIZED.fullmatch(word), _GENERIC.fullmatch(word)
    if sized is not None:
        return ("number",) if sized[1] == "float" else ("integer",)
    if generic is None:
        return ()
    if generic[1] == "optional":
        inner = json_types(re.split(r"[\[<(]", word, maxsplit=1)[1][:-1])
        return (*inner, "null") if inner else ()
    return (_BY_NAME[generic[1]],) if generic[1] in _BY_NAME else ()


def types_of(schema: Mapping[str, Any]) -> tuple[str, ...]:
    """The types that ``type`` and ``nullable`` name, in order; empty if any type is allowed or none is known."""
    kinds = schema.get("type")
    names = kinds if isinstance(kinds, (list, tuple)) else [kinds]
    known = dict.fromkeys(kind for name in names for kind in json_types(name))
    if known and schema.get("nullable") is True:
        known["null"] = None
    return tuple(known)


def leaf_schemas(schema: Any, references: References) -> Iterator[Any]:
    """The schemas behind references, ``anyOf``, ``oneOf`` and an ``allOf`` of one, in their order.

    Each is returned once, no matter how often it can be reached.
    """
    seen: set[int] = set()
    waiting = [schema]
    while waiting:
        item = waiting.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        inner = _inner_schemas(item, references) if isinstance(item, Mapping) else None
        if inner is None:
            yield item
        else:
            waiting.extend(reversed(inner))


def _inner_schemas(schema: Mapping[str, Any], references: References) -> list[Any] | None:
    null = [{"type": "null"}] if schema.get("nullable") is True else []
    if isinstance(schema.get("$ref"), str):
        return [references.find(schema["$ref"]), *null]
    if "type" in schema or "enum" in schema or "const" in schema:
        return None
    whole = schema.get("allOf")
    if isinstance(whole, (list, tuple)) and len(whole) == 1:
        return list(whole)
    branches = schema.get("anyOf", schema.get("oneOf"))
    if not isinstance(branches, (list, tuple)) or not branches:
        return None
    return [*branches, *null]
