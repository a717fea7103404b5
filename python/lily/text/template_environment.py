"""The sandbox that chat templates run in: what they may call, and bounds on runaway templates.

The bounds stop endless loops over `range`, oversized output and repetition bombs. They are a guard against
broken templates; a hostile one can still waste memory in other ways, so load templates from sources you
trust.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from typing import Any, NoReturn

import jinja2
from jinja2 import Undefined
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment, is_internal_attribute

__all__ = ["OUTPUT_LIMIT", "TemplateRefusal", "bounded_range", "make_environment"]

OUTPUT_LIMIT = 64 * 1024 * 1024  # characters
RANGE_LIMIT = 1_000_000  # steps of range() in one rendering
REPEAT_LIMIT = 1_000_000  # characters or items made by one multiplication
POWER_LIMIT = 64  # highest exponent


class TemplateRefusal(jinja2.TemplateError):
    """A template called raise_exception: it does not accept the messages."""


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(["*", "**"])

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        if attribute.startswith("__") or is_internal_attribute(obj, attribute):
            raise SecurityError(f"access to attribute {attribute!r} of a {type(obj).__name__} is not allowed")
        return super().unsafe_undefined(obj, attribute)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and isinstance(right, (int, float)) and right > POWER_LIMIT:
            raise SecurityError(f"an exponent above {POWER_LIMIT} is not allowed")
        for sequence, count in ((left, right), (right, left)):
            repeats = operator == "*" and hasattr(sequence, "__len__") and isinstance(count, int)
            if repeats and len(sequence) * count > REPEAT_LIMIT:
                raise SecurityError(f"a repetition to more than {REPEAT_LIMIT} items is not allowed")
        return super().call_binop(context, operator, left, right)


def make_environment() -> ImmutableSandboxedEnvironment:
    """Return an environment with the filters and functions that chat templates of this family need."""
    environment = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols"],
        keep_trailing_newline=False,
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def bounded_range() -> Callable[..., range]:
    """Return a `range` for one rendering, whose calls together may give at most RANGE_LIMIT steps."""
    steps_left = RANGE_LIMIT

    def limited_range(*arguments: int) -> range:
        nonlocal steps_left
        steps = range(*arguments)
        # len() of a huge range overflows; its bounds tell.
        count = max(0, -(-(steps.stop - steps.start) // steps.step))
        steps_left -= count + 1
        if steps_left < 0:
            raise OverflowError(f"loops over range() take more than {RANGE_LIMIT} steps")
        return steps

    return limited_range


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja2's own tojson escapes HTML and sorts keys, which is not what models were trained on.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateRefusal(str(message))


def _strftime_now(format: str) -> str:
    return datetime.datetime.now().strftime(format)
