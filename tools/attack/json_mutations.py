"""Random changes of JSON texts: hostile values, missing and doubled keys, deep nesting, broken text."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

__all__ = ["HOSTILE_JSON", "hostile_json", "mutated_json"]

HOSTILE_JSON: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**32, 2**53, 2**63, 2**64, -(2**63), 10**30, 0.5, -0.5, 1e308, 1e-320),
    *("", "a", "0", "-1", "null", "nan", "\0", "\ud800", "../../etc/passwd", "/dev/zero", "{{ 7 * 7 }}", "<|im_end|>"),
    *("é" * 3000, "a" * 100_000, [], {}, [[]], [0], [None], [-1] * 1000, {"": 0}, {"a": {"b": {}}}, [2**63, 2**63]),
)
# Python writes these although they are no JSON.
NOT_JSON = (float("nan"), float("inf"), float("-inf"))
MOST_PLACES = 400


def hostile_json(rng: random.Random) -> Any:
    """A value that a careless reader stumbles over."""
    if rng.random() < 0.1:
        return rng.choice(NOT_JSON)
    return copy.deepcopy(rng.choice(HOSTILE_JSON))


def mutated_json(text: str, rng: random.Random) -> bytes:
    """The text with one to three changes of its values, or with its structure broken."""
    value = json.loads(text)
    for _ in range(rng.randint(1, 3)):
        value = _changed(value, rng)
    written = json.dumps(value)
    kind = rng.random()
    if kind < 0.08:
        return _doubled_key(written, rng).encode("utf-8", "surrogatepass")
    if kind < 0.14:
        depth = rng.choice((60, 200, 1000, 100_000))
        opening, closing = rng.choice((("[", "]"), ('{"a":', "}")))
        return (written[:-1] + ', "deep": ' + opening * depth + "1" + closing * depth + "}").encode()
    if kind < 0.18:
        return (written[:-1] + ', "long": ' + "9" * rng.choice((4000, 5000, 1_000_000)) + "}").encode()
    if kind < 0.22:
        return written.encode(rng.choice(("utf-16", "utf-32", "utf-8-sig")))
    return written.encode("utf-8", "surrogatepass")


def _changed(value: Any, rng: random.Random) -> Any:
    """Change one place in the tree."""
    places = _places(value)
    if not places:
        return hostile_json(rng)
    container, key = rng.choice(places)
    kind = rng.random()
    if kind < 0.6:
        container[key] = hostile_json(rng)
    elif kind < 0.75 and isinstance(container, dict):
        del container[key]
    elif kind < 0.85:
        other, place = rng.choice(places)
        container[key] = copy.deepcopy(other[place])
    elif isinstance(container[key], int | float) and not isinstance(container[key], bool):
        container[key] = rng.choice((container[key] * 2, container[key] + 1, -container[key], container[key] * 10**6))
    else:
        container[key] = [container[key]]
    return value


def _places(value: Any) -> list[tuple[Any, Any]]:
    """(container, key) of places in the tree; few of a long list."""
    found: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting and len(found) < MOST_PLACES:
        one = waiting.pop(0)
        keys = list(one) if isinstance(one, dict) else range(len(one)) if isinstance(one, list) else ()
        for key in list(keys)[:100]:
            found.append((one, key))
            waiting.append(one[key])
    return found


def _doubled_key(text: str, rng: random.Random) -> str:
    value = json.loads(text)
    if not isinstance(value, dict) or not value:
        return text
    key = rng.choice(list(value))
    return f"{text[:-1]}, {json.dumps(key)}: {json.dumps(hostile_json(rng))}}}"
