"""The server's JSON: strict when read; when written, it accepts whatever text a request contained."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

from starlette.responses import Response

from lily.server.json_steps import parse_in_steps

__all__ = ["JsonResponse", "dump_json", "load_json"]

_SHORT = 1 << 17  # bytes: a millisecond or two
_DEPTH = 200  # Python code that walks through a value needs up to three frames for each level


def load_json(data: bytes | bytearray, check: Callable[[], None] = lambda: None) -> Any:
    """Parse JSON; other threads run meanwhile.

    Parameters
    ----------
    data
        The text.
    check
        Called now and then; an exception ends the parsing.

    Raises
    ------
    ValueError
        The text is not JSON, or contains NaN or a number beyond the range of a float.
    RecursionError
        It is nested too deeply.
    """
    if len(data) < _SHORT:
        value = json.loads(data, parse_constant=_refuse, parse_float=_finite)
    else:
        value = parse_in_steps(data, json.JSONDecoder(parse_constant=_refuse, parse_float=_finite), check)
    if data.count(b"[") + data.count(b"{") > _DEPTH and _is_deep(value):
        raise RecursionError
    return value


def dump_json(value: Any) -> bytes:
    """Compact JSON as UTF-8. A lone surrogate, which UTF-8 cannot encode, becomes a question mark."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8", "replace")


class JsonResponse(Response):
    """A JSON body."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """The body's bytes."""
        return dump_json(content)


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(_DEPTH):
        level = [
            item
            for one in level
            for item in (one.values() if isinstance(one, dict) else one)
            if isinstance(item, (dict, list))
        ]
        if not level:
            return False
    return True


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is out of range")
    return value
