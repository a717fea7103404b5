"""Values that nobody should give, for every parameter of the library."""

from __future__ import annotations

import datetime
import decimal
from collections import UserDict, UserString, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np


class MidwayError(Exception):
    """The caller's own: raised by an object of its own, it may come through."""


class Unusable:
    """Every method that the library could call raises an error of its own."""

    def _fail(self, *_: object, **__: object) -> Any:
        raise MidwayError

    __repr__ = __str__ = __len__ = __iter__ = __getitem__ = __index__ = __int__ = __float__ = _fail  # type: ignore[assignment]
    __eq__ = __hash__ = __bool__ = __contains__ = __fspath__ = __array__ = keys = _fail  # type: ignore[assignment]


class Accepting:
    """A type that can be called with anything."""

    def __init__(self, *_: object, **__: object) -> None:
        pass


class Text(str):
    """A string that is not exactly a str."""


def midway() -> Iterator[int]:
    yield 1
    raise MidwayError


def endless_list() -> list[Any]:
    inner: list[Any] = []
    inner.append(inner)
    return inner


def deep(levels: int = 100_000) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


LONG_TEXT = "x" * 300_000

#: By name; made anew for each call.
HOSTILE: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "True": lambda: True,
    "False": lambda: False,
    "0": lambda: 0,
    "1": lambda: 1,
    "-1": lambda: -1,
    "2**31": lambda: 2**31,
    "2**63": lambda: 2**63,
    "2**64": lambda: 2**64,
    "-2**70": lambda: -(2**70),
    "5000 digits": lambda: 10**5000,
    "1.5": lambda: 1.5,
    "nan": lambda: float("nan"),
    "inf": lambda: float("inf"),
    "-inf": lambda: float("-inf"),
    "complex": lambda: 1j,
    "Decimal": lambda: decimal.Decimal("NaN"),
    "empty text": lambda: "",
    "text": lambda: "x",
    "NUL": lambda: "\0",
    "surrogate": lambda: "\ud800",
    "long text": lambda: LONG_TEXT,
    "text subclass": lambda: Text("x"),
    "UserString": lambda: UserString("x"),
    "bytes": lambda: b"x",
    "bytearray": lambda: bytearray(b"x"),
    "empty list": list,
    "[1]": lambda: [1],
    "[-1]": lambda: [-1],
    "[1.5]": lambda: [1.5],
    "['x']": lambda: ["x"],
    "[None]": lambda: [None],
    "[True]": lambda: [True],
    "[2**40]": lambda: [2**40],
    "[2**70]": lambda: [2**70],
    "[[1], [2, 3]]": lambda: [[1], [2, 3]],
    "['\\ud800']": lambda: ["\ud800"],
    "long list": lambda: [LONG_TEXT] * 3,
    "endless list": endless_list,
    "deep list": deep,
    "tuple": lambda: (1, "x"),
    "empty dict": dict,
    "{'a': 1}": lambda: {"a": 1},
    "{1: 'x'}": lambda: {1: "x"},
    "{'\\ud800': nan}": lambda: {"\ud800": float("nan")},
    "{long: long}": lambda: {LONG_TEXT: LONG_TEXT},
    "{'type': []}": lambda: {"type": [], "name": {}},
    "UserDict": lambda: UserDict({"a": 1}),
    "set": lambda: {1, 2},
    "set of text": lambda: {"x"},
    "generator": lambda: (value for value in [1, 2]),
    "generator that fails": midway,
    "deque": lambda: deque([1]),
    "range": lambda: range(3),
    "object": object,
    "unusable": Unusable,
    "list of unusable": lambda: [Unusable()],
    "type": lambda: Accepting,
    "Ellipsis": lambda: ...,
    "function": lambda: lambda *_, **__: None,
    "path": lambda: Path("/nonexistent/\ud800"),
    "directory": lambda: Path("/"),
    "date": lambda: datetime.date(2020, 1, 1),
    "np.int64": lambda: np.int64(3),
    "np.uint64": lambda: np.uint64(2**64 - 1),
    "np.float32": lambda: np.float32("nan"),
    "np.bool_": lambda: np.bool_(True),
    "np.str_": lambda: np.str_("x"),
    "np.array(3)": lambda: np.array(3),
    "np.array([1, 2])": lambda: np.array([1, 2]),
    "np.array([])": lambda: np.array([]),
    "np.array([[1.5]])": lambda: np.array([[1.5]]),
    "np.array(['x'])": lambda: np.array(["x"]),
    "np.array([None])": lambda: np.array([None]),
    "np.uint32": lambda: np.array([1, 2], np.uint32),
    "memoryview": lambda: memoryview(b"abc"),
}
