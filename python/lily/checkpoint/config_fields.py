"""Typed access to the fields of a config.json object: each wrong type or value is one ConfigError."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from lily.checks.quoting import quoted_json, quoted_path, quoted_text
from lily.errors import ConfigError

_REQUIRED = object()


@dataclass(frozen=True)
class ConfigFields:
    """Fields of one JSON object; `where` names the file and the object in errors.

    A field that is null counts as absent, as configuration writers use both for "not set".
    """

    values: Mapping[str, Any]
    where: str

    def fail(self, name: str, problem: str) -> NoReturn:
        raise ConfigError(f"{quoted_path(self.where)}: {quoted_text(name)} {problem}")

    def get(self, name: str) -> Any:
        return self.values.get(name)

    def _value(self, name: str, default: Any) -> Any:
        value = self.values.get(name)
        if value is not None:
            return value
        if default is _REQUIRED:
            self.fail(name, "is missing; take config.json from the checkpoint's source")
        return default

    def integer(self, name: str, *, low: int = 1, high: int, default: Any = _REQUIRED) -> int:
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            self.fail(name, f"must be an integer, not {quoted_json(value)}")
        if not low <= value <= high:
            self.fail(name, f"must be between {low} and {high}, not {quoted_json(value)}")
        return value

    def number(self, name: str, *, low: float, high: float, default: Any = _REQUIRED) -> float:
        """A finite number in [low, high]."""
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self.fail(name, f"must be a number, not {quoted_json(value)}")
        if not low <= value <= high or not math.isfinite(value):
            self.fail(name, f"must be between {low:g} and {high:g}, not {quoted_json(value)}")
        return float(value)

    def boolean(self, name: str, *, default: bool) -> bool:
        value = self._value(name, default)
        if not isinstance(value, bool):
            self.fail(name, f"must be true or false, not {quoted_json(value)}")
        return value

    def text(self, name: str, *, default: str) -> str:
        value = self._value(name, default)
        if not isinstance(value, str):
            self.fail(name, f"must be a string, not {quoted_json(value)}")
        return value

    def strings(self, name: str) -> list[str] | None:
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self.fail(name, "must be a list of strings")
        return value

    def section(self, name: str) -> ConfigFields | None:
        """A nested object, or None if absent."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.fail(name, f"must be an object, not {quoted_json(value)}")
        return ConfigFields(value, f"{self.where}: {quoted_text(name)}")
