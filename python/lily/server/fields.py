"""Checks the fields of a request's body one by one; unknown ones are ignored with a warning, or refused."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from lily.server.errors import ApiError
from lily.server.request_warnings import Warnings

__all__ = ["Fields"]

_NUMBER = re.compile(r"[+-]?\d{1,18}(?:\.\d{0,18})?(?:[eE][+-]?\d{1,3})?", re.ASCII)
_LONGEST_STRING = 1024  # characters of a stop string: each token is compared with it


class Fields:
    """The fields of a JSON object. null means that a field is not given.

    Attributes
    ----------
    warnings : Warnings
        Of the whole request.
    """

    def __init__(self, body: Any, where: str = "", warnings: Warnings | None = None) -> None:
        if not isinstance(body, Mapping):
            raise ApiError(400, "the body must be a JSON object" if not where else f"{where} must be an object")
        self._body: Mapping[str, Any] = body
        self._where = where
        self._known: set[str] = set()
        self.warnings = Warnings() if warnings is None else warnings

    def inner(self, name: str) -> Fields:
        """The fields of a nested object; no fields if it is not given."""
        return Fields(self.mapping(name) or {}, f"{self._where}{name}.", self.warnings)

    def take(self, *names: str) -> str:
        """The first given one of several names of a field; all of them count as known."""
        self._known.update(names)
        return next((name for name in names if self._body.get(name) is not None), names[0])

    def any(self, name: str, default: Any = None) -> Any:
        """The value, unchecked."""
        self._known.add(name)
        value = self._body.get(name)
        return default if value is None else value

    def required(self, name: str) -> Any:
        """The value of a field that must be there."""
        value = self.any(name)
        if value is None:
            raise ApiError(400, f"Missing required parameter: '{name}'.", param=name, code="missing_required_parameter")
        return value

    def text(self, name: str) -> str | None:
        """A string."""
        value = self.any(name)
        if value is not None and not isinstance(value, str):
            raise self.wrong(name, "a string", value)
        return value

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self.any(name, default)
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false", value)
        return value

    def integer(self, name: str, low: int, high: int = (1 << 63) - 1) -> int | None:
        """An integer in [low, high]."""
        value = _unquoted(self.any(name))
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():  # some languages write integers like this
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            limits = f"of at least {low}" if high > 1 << 62 else f"from {low} to {high}"
            raise self.wrong(name, f"an integer {limits}", value)
        return value

    def number(self, name: str, low: float, high: float) -> float | None:
        """A finite number in [low, high]."""
        value = _unquoted(self.any(name))
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            limits = f"of at least {low:g}" if math.isinf(high) else f"from {low:g} to {high:g}"
            raise self.wrong(name, f"a number {limits}", value)
        if not math.isfinite(value):
            raise self.wrong(name, "a finite number", value)
        return float(value)

    def items(self, name: str) -> list[Any] | None:
        """A list."""
        value = self.any(name)
        if value is not None and not isinstance(value, list):
            raise self.wrong(name, "a list", value)
        return value

    def mapping(self, name: str) -> dict[str, Any] | None:
        """An object. An empty list counts as an empty object, because some languages write it so."""
        value = self.any(name)
        value = {} if value == [] else value
        if value is not None and not isinstance(value, dict):
            raise self.wrong(name, "an object", value)
        return value

    def strings(self, name: str, most: int) -> tuple[str, ...]:
        """A string, or a list of up to `most` strings; empty ones are left out."""
        value = self.any(name, [])
        strings = [value] if isinstance(value, str) else value
        if not isinstance(strings, list) or not all(isinstance(one, (str, type(None))) for one in strings):
            raise self.wrong(name, "a string or a list of strings", value)
        strings = [one for one in strings if one]
        if len(strings) > most:
            raise self.wrong(name, f"at most {most} strings", value)
        if any(len(one) > _LONGEST_STRING for one in strings):
            raise self.wrong(name, f"strings of at most {_LONGEST_STRING} characters", value)
        return tuple(strings)

    def ignore(self, *names: str) -> None:
        """Ignore fields of the API that make no difference here."""
        self._known.update(names)

    def ignore_warned(self, fields: Mapping[str, str]) -> None:
        """Ignore fields that this server does not support; each one given gets a warning with the reason."""
        self._known.update(fields)
        for name, meaning in fields.items():
            if self._body.get(name):
                self.warnings.add(f"{self._where}{name} is ignored: {meaning}")

    def refuse(self, fields: Mapping[str, str]) -> None:
        """Raise ApiError for the first given one of these fields, which would change the meaning of the answer."""
        self._known.update(fields)
        for name, reason in fields.items():
            if self._body.get(name):
                raise ApiError(400, f"{self._where}{name}: {reason}", param=name, code="unsupported_parameter")

    def rest(self) -> list[str]:
        """Names of fields that were neither read nor ignored so far."""
        return [name for name in self._body if name not in self._known]

    def finish(self, *, strict: bool) -> None:
        """Warn about each field that was neither read nor ignored; with `strict`, raise ApiError for the first."""
        for name in self.rest():
            if strict:
                raise ApiError(
                    400, f"Unknown parameter: '{self._where}{name}'.", param=name[:200], code="unknown_parameter"
                )
            self.warnings.add(f"{self._where}{name[:80]} is ignored: this server does not know it")

    def wrong(self, name: str, expected: str, value: object) -> ApiError:
        """The error for a value of the wrong kind."""
        shown = repr(value)
        shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
        return ApiError(400, f"{name} must be {expected}, not {shown}", param=name, code="invalid_value")


def _unquoted(value: Any) -> Any:
    """The number in a string, if it is one; otherwise the value itself."""
    if not isinstance(value, str) or not _NUMBER.fullmatch(value):
        return value
    return int(value) if value.lstrip("+-").isdigit() else float(value)
