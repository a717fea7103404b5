"""JSON in and out of the server: strict where it is read, always writable where texts of requests come back."""

from __future__ import annotations

import json
import math
from typing import Any

from starlette.responses import Response

__all__ = ["JsonResponse", "dump_json", "load_json"]


def load_json(data: bytes) -> Any:
    """Parse JSON; ValueError also for NaN and for numbers that no float holds, RecursionError for deep nesting."""
    return json.loads(data, parse_constant=_refuse, parse_float=_finite)


def dump_json(value: Any) -> bytes:
    """Compact JSON as UTF-8; a lone surrogate, which a request may hold but UTF-8 cannot, becomes a question mark."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8", "replace")


class JsonResponse(Response):
    """A JSON body."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """The body's bytes."""
        return dump_json(content)


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is out of range")
    return value
