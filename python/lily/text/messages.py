"""Brings chat messages into the form that chat templates expect.

Policy about roles (merging leading system messages, converting later ones) belongs in `prepare_messages`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from lily.errors import TemplateError

__all__ = ["prepare_messages"]


def prepare_messages(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a copy of `messages` that a template can render; the input is left alone.

    A ``developer`` message at index 0 becomes a ``system`` message. Tool-call arguments given as a JSON
    string, as in OpenAI's format, become a mapping; an empty string stands for no arguments.

    Raises
    ------
    TemplateError
        A message is not a mapping with a role, or its tool calls are malformed; the message's index is named.
    """
    if isinstance(messages, (str, bytes, Mapping)):
        raise TemplateError(f"messages must be a list of mappings, not a {type(messages).__name__}")
    return [_prepare(index, message) for index, message in enumerate(messages)]


def _prepare(index: int, message: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise TemplateError(f"message {index} must be a mapping, not a {type(message).__name__}")
    prepared = dict(message)
    role = prepared.get("role")
    if not isinstance(role, str):
        raise TemplateError(f"message {index} must have a role string, but its role is {role!r}")
    if index == 0 and role == "developer":
        prepared["role"] = "system"
    calls = prepared.get("tool_calls")
    if calls:
        if not isinstance(calls, (list, tuple)):
            raise TemplateError(f"message {index}: tool_calls must be a list, not a {type(calls).__name__}")
        prepared["tool_calls"] = [
            _prepare_call(f"message {index}, tool call {at}", call) for at, call in enumerate(calls)
        ]
    return prepared


def _prepare_call(where: str, call: Any) -> dict[str, Any]:
    if not isinstance(call, Mapping):
        raise TemplateError(f"{where}: must be a mapping, not a {type(call).__name__}")
    prepared = dict(call)
    function = prepared.get("function")
    if isinstance(function, Mapping):
        prepared["function"] = _with_parsed_arguments(where, dict(function))
        return prepared
    return _with_parsed_arguments(where, prepared)


def _with_parsed_arguments(where: str, function: dict[str, Any]) -> dict[str, Any]:
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        return function
    try:
        parsed = json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError) as error:
        raise TemplateError(f"{where}: arguments are not valid JSON ({error})") from error
    if not isinstance(parsed, dict):
        raise TemplateError(f"{where}: arguments must be a JSON object, not a {type(parsed).__name__}")
    function["arguments"] = parsed
    return function
