"""Random damage to files: to their bytes, and to the fields of their JSON."""

from __future__ import annotations

import json
import random
from typing import Any

ODD_VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    3,
    7,
    255,
    2**31,
    2**32 + 1,
    2**40,
    2**63,
    2**64,
    10**30,
    0.0,
    0.5,
    -1.5,
    1e300,
    float("nan"),
    float("inf"),
    "",
    "a",
    "default",
    "U32",
    "BF16",
    "F16",
    "F32",
    "F64",
    "I64",
    "F4",
    "\ud800",
    "\0",
    "é",
    "../x.safetensors",
    "/x.safetensors",
    "model.safetensors",
    "full_attention",
    "qwen3_5_moe",
    [],
    {},
    [0],
    [0, 0],
    [1, 2, 3],
    [-1, 5],
    [2**62, 2**62],
    [True],
    [[]],
    {"a": 1},
    {"bits": 8},
    {"bits": 4, "group_size": 32},
)


def mutate_bytes(content: bytes, rng: random.Random) -> bytes:
    """Flip, overwrite, insert, delete, repeat or cut bytes."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 5, 20))):
        at = rng.randrange(len(data) + 1)
        span = rng.choice((1, 1, 2, 8, 64))
        kind = rng.randrange(6)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[at : at + span] = rng.randbytes(span)
        elif kind == 2:
            data[at:at] = rng.choice((b"[", b"{", b'"', b",", b"0", b"-", b"9" * 30, b"\\u0000", rng.randbytes(span)))
        elif kind == 3:
            del data[at : at + span]
        elif kind == 4:
            data[at:at] = data[at : at + span]
        else:
            del data[rng.randrange(len(data) + 1) :]
    return bytes(data)


def containers(value: Any) -> list[Any]:
    """Every object and list within a JSON value."""
    found = []
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, (dict, list)):
            found.append(item)
            stack.extend(item.values() if isinstance(item, dict) else item)
    return found


def mutate_json(content: dict[str, Any], rng: random.Random) -> None:
    """Replace, remove, rename, swap or nudge fields anywhere in a JSON object, in place."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        place = rng.choice([item for item in containers(content) if item] or [content])
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            continue
        key, other = rng.choice(keys), rng.choice(keys)
        kind = rng.randrange(6)
        if kind == 0:
            place[key] = rng.choice(ODD_VALUES)
        elif kind == 1:
            del place[key]
        elif kind == 2:
            place[key], place[other] = place[other], place[key]
        elif kind == 3 and isinstance(place[key], int):
            place[key] = place[key] + rng.choice((-1, 1, 8, -8, 2**20)) if rng.randrange(2) else place[key] * 2
        elif kind == 4 and isinstance(place, dict):
            renamed = rng.choice((f"{key}x", key.replace("layers.0", "layers.1"), key[1:], "é" + key, key.upper()))
            place[renamed] = place.pop(key)
        else:
            place[key] = json.loads(json.dumps(place[other]))
