"""Values that no caller should give, and objects that misbehave when they are looked at."""

from __future__ import annotations

import decimal
import fractions
import itertools
import math
import pathlib
import random
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["HostileError", "hostile_value"]


class HostileError(Exception):
    """Raised by the caller's own objects; it may come back."""


class _Raises:
    """Raises whatever is done with it."""

    def _raise(self, *_: object, **__: object) -> Any:
        raise HostileError

    __iter__ = __len__ = __index__ = __int__ = __float__ = __eq__ = __hash__ = __bool__ = _raise
    __getitem__ = __contains__ = __call__ = __fspath__ = __array__ = __str__ = __repr__ = _raise


class _WrongLength(list):  # type: ignore[type-arg]
    """Claims to be huge."""

    def __len__(self) -> int:
        return 2**40


class _Text(str):
    """A text that is none when it is looked at twice."""

    def encode(self, *_: object, **__: object) -> bytes:
        raise HostileError

    def __str__(self) -> str:
        return "x" * 100


class _Number(int):
    def __index__(self) -> int:
        return 2**70

    def __int__(self) -> int:
        return -1


def _itself() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def _own_key() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["a"] = value
    return value


def _deep(depth: int = 100_000) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


_MAKERS: tuple[Callable[[], Any], ...] = (
    *(lambda: None, lambda: True, lambda: False, lambda: ..., lambda: NotImplemented, object, _Raises, lambda: _Raises),
    *(
        lambda: 0,
        lambda: 1,
        lambda: -1,
        lambda: 2**31,
        lambda: 2**63,
        lambda: 2**64,
        lambda: -(2**63) - 1,
        lambda: 10**400,
    ),
    *(lambda: 0.5, lambda: -0.0, lambda: math.nan, lambda: math.inf, lambda: -math.inf, lambda: 1e308, lambda: 1j),
    *(
        lambda: "",
        lambda: "a",
        lambda: "\0",
        lambda: "\ud800",
        lambda: "é" * 100_000,
        lambda: "12",
        lambda: "~",
        lambda: "/nowhere/x",
    ),
    *(
        lambda: b"",
        lambda: b"abc",
        lambda: bytearray(b"a"),
        lambda: memoryview(b"abcd"),
        lambda: _Text("a"),
        lambda: _Number(3),
    ),
    *(
        list,
        lambda: [None],
        lambda: [1.5],
        lambda: ["a"],
        lambda: [[1, 2]],
        lambda: [True],
        lambda: [2**70],
        lambda: [-1],
        _itself,
    ),
    *(
        dict,
        lambda: {1: 2},
        lambda: {"a": None},
        lambda: {"": {}},
        lambda: {b"a": 1},
        lambda: {"\ud800": "\ud800"},
        _own_key,
        _deep,
    ),
    *(
        set,
        lambda: {1, 2},
        lambda: frozenset("ab"),
        tuple,
        lambda: (1, "a"),
        lambda: range(10**12),
        lambda: itertools.count(),
    ),
    *(
        lambda: itertools.repeat(1),
        lambda: itertools.repeat({}),
        lambda: itertools.repeat("a"),
        lambda: iter([]),
        lambda: (1 / 0 for _ in [1]) if False else iter(()),
    ),
    *(
        lambda: np.array([]),
        lambda: np.array(1),
        lambda: np.array([1.5, math.nan]),
        lambda: np.zeros((2, 2), int),
        lambda: np.array(["a"]),
    ),
    *(
        lambda: np.array([None]),
        lambda: np.uint64(2**63),
        lambda: np.float16(1),
        lambda: np.int8(-1),
        lambda: np.zeros(3, "M8[s]"),
    ),
    *(
        lambda: np.broadcast_to(np.int64(1), (2**40,)),
        lambda: np.arange(6)[::2],
        lambda: np.array([1], ">i8"),
        lambda: np.ma.masked,
    ),
    *(
        lambda: decimal.Decimal("NaN"),
        lambda: fractions.Fraction(1, 3),
        lambda: pathlib.Path(),
        lambda: pathlib.Path("/dev/null"),
    ),
    *(
        lambda: pathlib.Path("/dev/zero"),
        lambda: pathlib.Path("a" * 10_000),
        lambda: int,
        lambda: math,
        lambda: len,
        lambda: print,
    ),
    *(
        lambda: _WrongLength([1]),
        lambda: lambda: None,
        lambda: lambda *a, **k: _raise(),
        lambda: lambda *a: [_Raises()],
    ),
    *(
        lambda: [{"role": "user", "content": "x"}],
        lambda: [{"role": 1}],
        lambda: [{"role": "user", "content": [{"type": []}]}],
    ),
    *(
        lambda: [{"role": "assistant", "tool_calls": [{"function": None}]}],
        lambda: [{"role": "tool", "content": {"a": b"x"}}],
    ),
    *(
        lambda: [{"type": "function", "function": {"name": 1}}],
        lambda: [{"type": "function", "function": {"name": "f", "parameters": [1]}}],
    ),
    *(
        lambda: {"type": "json_schema"},
        lambda: {"type": "regex", "regex": "("},
        lambda: {"type": "grammar", "grammar": 3},
    ),
    *(
        lambda: {"type": "function", "function": {"name": "\ud800"}},
        lambda: {5: math.nan},
        lambda: {10**9: 1.0},
        lambda: {"5": 1},
    ),
)


def _raise() -> None:
    raise HostileError


def hostile_value(rng: random.Random) -> tuple[int, Any]:
    """(its number, a fresh one)."""
    number = rng.randrange(len(_MAKERS))
    return number, _MAKERS[number]()
