"""Examples of the parameter types of OpenAI's and Anthropic's clients, so that tests know all there is to send."""

from __future__ import annotations

import collections.abc
import types
import typing
from typing import Any

import typing_extensions

_DEPTH = 6


def bare(hint: Any) -> Any:
    """A type without Annotated, Required and the like."""
    while typing_extensions.get_origin(hint) in (
        typing_extensions.Annotated,
        typing_extensions.Required,
        typing_extensions.NotRequired,
    ):
        hint = typing_extensions.get_args(hint)[0]
    return hint


def variants(hint: Any) -> list[Any]:
    """The types of a union, of lists in it too."""
    hint = bare(hint)
    origin = typing_extensions.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return [one for inner in typing_extensions.get_args(hint) for one in variants(inner)]
    if origin in (list, collections.abc.Iterable, collections.abc.Sequence):
        return variants(typing_extensions.get_args(hint)[0])
    return [hint]


def dicts(hint: Any) -> list[Any]:
    """The TypedDicts of a union."""
    return [one for one in variants(hint) if typing_extensions.is_typeddict(one)]


def fields(kind: Any) -> dict[str, Any]:
    """The fields of a TypedDict, with their types."""
    return typing_extensions.get_type_hints(kind, include_extras=False)


def _required(kind: Any) -> set[str]:
    hints = typing_extensions.get_type_hints(kind, include_extras=True)
    return {name for name, hint in hints.items() if typing_extensions.get_origin(hint) is typing_extensions.Required}


def example(hint: Any, *, every: bool, depth: int = _DEPTH) -> Any:
    """A value of a type: with all fields of its TypedDicts, or with the required ones."""
    hint = bare(hint)
    origin, arguments = typing_extensions.get_origin(hint), typing_extensions.get_args(hint)
    if origin is typing_extensions.Literal or origin is typing.Literal:
        return arguments[0]
    if origin in (typing.Union, types.UnionType):
        return example(arguments[0], every=every, depth=depth)
    if origin in (list, collections.abc.Iterable, collections.abc.Sequence):
        return [example(arguments[0], every=every, depth=depth - 1)] if depth else []
    if typing_extensions.is_typeddict(hint):
        names = fields(hint)
        wanted = [name for name in names if name in _required(hint) or (every and depth > 2)]
        return {name: example(names[name], every=every, depth=depth - 1) for name in wanted}
    if origin in (dict, collections.abc.Mapping) or hint is dict:
        return {}
    return {str: "x", int: 1, float: 1.0, bool: True, type(None): None, object: {}}.get(hint, "x")
