"""Checks that stop a chat template's filters, methods and operators before they make something too large."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from jinja2.exceptions import SecurityError
from markupsafe import Markup

from lily.text.template_budget import REPEAT_LIMIT, counted, current_budget, text_size

__all__ = ["CHECKED_OWNERS", "check_format", "checked_arguments", "guard_filters", "operate"]

_POWER_LIMIT = 64  # highest exponent
_BITS_LIMIT = 4096  # of an integer that an operator makes
_WIDTH = re.compile(r"\d{7}")  # in a format
_PADDING = frozenset({"center", "expandtabs", "ljust", "rjust", "to_bytes", "zfill"})
# Types whose methods are checked before they are called.
CHECKED_OWNERS = (str, bytes, int, Markup)
# Filters whose result is as large as their input.
_COPIES = frozenset(
    {
        "capitalize", "e", "escape", "forceescape", "list", "lower", "reverse", "safe", "title", "trim", "truncate",
        "upper", "urlencode",
    }
)  # fmt: skip
# Filters that turn all of their input into a text, or copy it for comparison.
_WHOLE_VALUE = frozenset(
    {"dictsort", "groupby", "join", "max", "min", "pprint", "sort", "string", "tojson", "unique", "xmlattr"}
)


def operate(operator: str, left: Any, right: Any) -> Any:
    """One of the operators %, * and **, checked before and counted after."""
    if operator == "%":
        if isinstance(left, str):
            check_format(left, right if isinstance(right, tuple) else (right,), "%")
        return counted(left % right)
    if operator == "*":
        _check_product(left, right)
        return counted(left * right)
    _check_power(left, right)
    return left**right


def _check_power(left: Any, right: Any) -> None:
    if isinstance(right, (int, float)) and right > _POWER_LIMIT:
        raise SecurityError(f"an exponent above {_POWER_LIMIT} is not allowed")
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() * right > _BITS_LIMIT:
        raise SecurityError(f"an integer of more than {_BITS_LIMIT} bits is not allowed")


def _check_product(left: Any, right: Any) -> None:
    for sequence, count in ((left, right), (right, left)):
        repeats = hasattr(sequence, "__len__") and isinstance(count, int)
        if repeats and len(sequence) * count > REPEAT_LIMIT:
            raise SecurityError(f"a repetition to more than {REPEAT_LIMIT} items is not allowed")
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > _BITS_LIMIT:
        raise SecurityError(f"an integer of more than {_BITS_LIMIT} bits is not allowed")


def check_format(format: str, arguments: Any, sign: str) -> None:
    """Refuse a %-format or a str.format whose result could be far longer than its parts."""
    values = arguments.values() if isinstance(arguments, Mapping) else arguments
    nested = "*" in format if sign == "%" else re.search(r"\{[^{}]*\{", format)
    if _WIDTH.search(format) or (nested and any(isinstance(value, int) and value > REPEAT_LIMIT for value in values)):
        raise SecurityError(f"a width above {REPEAT_LIMIT} is not allowed")
    longest = max((text_size(value) for value in values), default=0)
    current_budget().take(len(format) + format.count(sign) * longest)


def checked_arguments(function: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of a call; refuses calls whose result would be too large."""
    owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
    if isinstance(owner, (str, bytes)):
        if name == "join":
            arguments = tuple(_known_size(argument) for argument in arguments)
        _check_text_method(owner, name, arguments)
    elif isinstance(owner, int) and name in _PADDING:
        _check_width(arguments)
    return arguments


def _check_text_method(owner: str | bytes, name: str, arguments: tuple[Any, ...]) -> None:
    if name in _PADDING:
        _check_width(arguments)
        if name == "expandtabs":
            width = arguments[0] if arguments and isinstance(arguments[0], int) else 8
            current_budget().take(len(owner) + len(owner) * max(width, 0))
    elif name == "replace" and len(arguments) >= 2:
        _check_replacement(owner, arguments[0], arguments[1])
    elif name == "join" and arguments:
        _check_join(arguments[0], owner)
    elif name == "format" and isinstance(owner, str):  # Jinja before 3.1.6: later ones ask wrap_str_format
        check_format(owner, arguments, "{")
    elif name == "translate" and arguments:
        current_budget().take(len(owner) * text_size(arguments[0]))


def _check_width(arguments: Any) -> None:
    if any(isinstance(value, int) and abs(value) > REPEAT_LIMIT for value in arguments):
        raise SecurityError(f"a number above {REPEAT_LIMIT} is not allowed here")


def _check_replacement(text: Any, old: Any, new: Any) -> None:
    if isinstance(text, str) and isinstance(old, str) and isinstance(new, str) and len(new) > len(old):
        current_budget().take(len(text) + text.count(old) * (len(new) - len(old)))


def _check_join(values: Any, separator: Any) -> None:
    if isinstance(values, (list, tuple)):
        current_budget().take(text_size(values) + len(separator) * len(values))


def guard_filters(filters: MutableMapping[str, Callable[..., Any]]) -> None:
    """Replace the filters that can make something large by checked ones."""
    for name, function in list(filters.items()):
        if name in _WHOLE_VALUE:
            filters[name] = _of_whole_value(function)
        elif name in _CHECKS:
            filters[name] = _checked(function, _CHECKS[name])
        elif name in _COPIES:
            filters[name] = _counted_filter(function)


def _first(function: Callable[..., Any]) -> int:
    """Index of a filter's value: after the environment or the context, if it takes one."""
    return int(hasattr(function, "jinja_pass_arg"))


def _counted_filter(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def guarded(*arguments: Any, **options: Any) -> Any:
        return counted(function(*arguments, **options))

    return guarded


def _checked(function: Callable[..., Any], check: Callable[[Any, tuple[Any, ...]], None]) -> Callable[..., Any]:
    first = _first(function)

    @functools.wraps(function)
    def guarded(*arguments: Any, **options: Any) -> Any:
        rest = (*arguments[first + 1 :], *options.values())
        _check_width(rest)
        check(arguments[first], rest)
        return counted(function(*arguments, **options))

    return guarded


def _of_whole_value(function: Callable[..., Any]) -> Callable[..., Any]:
    first = _first(function)

    @functools.wraps(function)
    def guarded(*arguments: Any, **options: Any) -> Any:
        value, rest = _known_size(arguments[first]), (*arguments[first + 1 :], *options.values())
        _check_width(rest)
        separators = sum(len(part) for part in rest if isinstance(part, str))
        items = len(value) if hasattr(value, "__len__") else 1
        current_budget().take(text_size(value) + separators * items)
        return counted(function(*arguments[:first], value, *arguments[first + 1 :], **options))

    return guarded


def _check_indent(value: Any, rest: tuple[Any, ...]) -> None:
    width = rest[0] if rest else 4
    columns = width if isinstance(width, int) else len(str(width))
    current_budget().take(len(value) + (value.count("\n") + 1) * columns)


def _check_replace(value: Any, rest: tuple[Any, ...]) -> None:
    if len(rest) >= 2:
        _check_replacement(value, rest[0], rest[1])


def _check_sum(_: Any, rest: tuple[Any, ...]) -> None:
    if any(isinstance(part, (list, tuple)) for part in rest):
        raise SecurityError("a sum of lists is not allowed")


_CHECKS: dict[str, Callable[[Any, tuple[Any, ...]], None]] = {
    "batch": lambda value, rest: None,
    "center": lambda value, rest: None,
    "format": lambda value, rest: check_format(value, rest, "%"),
    "indent": _check_indent,
    "replace": _check_replace,
    "round": lambda value, rest: None,
    "slice": lambda value, rest: None,
    "sum": _check_sum,
}


def _known_size(value: Any) -> Any:
    """A list in place of a generator, whose values can be read only once."""
    return list(value) if hasattr(value, "__next__") else value
