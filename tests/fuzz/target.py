"""What a fuzz target is, and how its inputs are kept in files."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis.strategies import SearchStrategy

__all__ = ["Attempt", "Target", "decode_input", "encode_input"]

Attempt = Callable[[Any], str]
_BYTES = "__bytes__"


@dataclass(frozen=True)
class Target:
    """One kind of input from outside.

    Attributes
    ----------
    name : str
        On the command line, and of the folder with inputs that once failed.
    inputs : strategy
        Makes inputs: values of JSON, and bytes within them.
    prepare : function
        Takes an empty folder and gives a context with the function that tries one input. That returns what came of
        it in a word ("refused", "accepted"), and fails with any exception but those that users are promised.
    examples : int
        How many are tried in a run of seconds.
    expected : frozenset of str
        Outcomes that a run of seconds must see, so that it is no exercise in refusing.
    seconds, megabytes : number
        The most that one input may take; generous, for loaded machines.
    """

    name: str
    inputs: SearchStrategy[Any]
    prepare: Callable[[Path], AbstractContextManager[Attempt]]
    examples: int
    expected: frozenset[str]
    seconds: float = 20
    megabytes: int = 512


def encode_input(value: Any) -> str:
    """An input as the JSON text of a file."""
    return json.dumps(value, indent=1, default=lambda item: {_BYTES: bytes(item).decode("latin-1")}) + "\n"


def decode_input(text: str) -> Any:
    """The input that `encode_input` wrote."""

    def value(item: dict[str, Any]) -> Any:
        return item[_BYTES].encode("latin-1") if item.keys() == {_BYTES} else item

    return json.loads(text, object_hook=value)
