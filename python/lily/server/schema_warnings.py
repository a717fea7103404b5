"""Warnings about parts of tool schemas that the grammar of calls does not enforce; see `lily.chat.grammars`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lily.chat.schema_references import References
from lily.chat.schema_types import ANY, leaf_schemas, types_of
from lily.server.request_warnings import Warnings

__all__ = ["warn_of_free_parameters"]

_MOST = 8  # warnings
#: Keywords of the arguments as a whole: each argument is written by itself.
_OF_OBJECTS = (
    *("$ref", "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "patternProperties", "propertyNames"),
    *("minProperties", "maxProperties", "dependentRequired", "dependentSchemas", "dependencies"),
)
#: Keywords of a parameter that takes any text.
_OF_TEXTS = (
    *("minLength", "maxLength", "pattern", "format", "allOf", "anyOf", "oneOf", "not", "if", "then", "else"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "properties", "required"),
    *("items", "prefixItems", "contains", "minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties"),
)


def warn_of_free_parameters(functions: Sequence[Mapping[str, Any]], names: set[str] | None, warnings: Warnings) -> None:
    """Warn about what is not enforced on calls whose form a grammar forces.

    Parameters
    ----------
    functions
        Definitions in OpenAI's form.
    names
        Of those that may be called; None: all.
    warnings
        Of the request.
    """
    count = 0
    for tool in functions:
        function = tool["function"]
        if names is not None and function["name"] not in names:
            continue
        for keyword, where in _free_keywords(function["parameters"]):
            count += 1
            if count > _MOST:
                warnings.add("tools: further keywords are not enforced on calls")
                return
            warnings.add(f"tools: calls of {function['name'][:80]} are not checked for {keyword}{where}")


def _free_keywords(schema: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for keyword in _OF_OBJECTS:
        if schema.get(keyword) is not None:
            yield keyword, " of the arguments"
    given = schema.get("properties")
    properties: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    required = schema.get("required")
    if isinstance(required, list) and any(isinstance(one, str) and one not in properties for one in required):
        yield "required", " of the arguments, which has names that are not in properties"
    references = References(schema)
    for name, inner in properties.items():
        leaves = [leaf for leaf in leaf_schemas(inner, references) if isinstance(leaf, Mapping)]
        if any(map(_is_text, leaves)):
            for keyword in _OF_TEXTS:
                if any(leaf.get(keyword) is not None for leaf in leaves):
                    yield keyword, f" of {str(name)[:80]}"


def _is_text(leaf: Mapping[str, Any]) -> bool:
    """Whether a parameter of this schema takes any text."""
    if leaf.get("enum") or "const" in leaf:
        return False
    kinds = types_of(leaf)
    if not kinds and "type" not in leaf and ("properties" in leaf or "items" in leaf):
        return False
    return not kinds or "string" in kinds or ANY in kinds
