"""Calls Python functions for the model and writes their results or exceptions as text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from lily.chat.events import ToolCall
from lily.chat.functions import PythonTool
from lily.checks.quoting import quoted

__all__ = ["as_text", "open_calls", "result_of"]


def as_text(result: Any) -> str:
    """A string is used unchanged; anything else becomes JSON, or ``str(result)`` if it has no JSON form."""
    if isinstance(result, str):
        return result
    try:
        return json.dumps(result, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        pass
    try:
        return str(result)
    except (ValueError, RecursionError):  # thousands of digits or levels
        return quoted(result)


def result_of(call: ToolCall, functions: Mapping[str, PythonTool]) -> Any:
    """The result of the function that a call names; errors become a text for the model."""
    function = functions.get(call.name)
    if function is None:
        return f"Error: there is no tool {call.name!r}; the tools are {', '.join(functions) or 'none'}"
    try:
        return function.call(call.arguments)
    except Exception as error:  # the model can react to whatever a tool raises
        return f"Error: {type(error).__name__}: {error}"


def open_calls(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Ids of the latest answer's calls that have no result."""
    given: list[Any] = []
    for message in reversed(messages):
        if message.get("role") != "tool":
            calls = message.get("tool_calls")
            given_calls = calls if isinstance(calls, (list, tuple)) else []
            ids = [call.get("id") for call in given_calls if isinstance(call, Mapping)]
            return [call_id for call_id in ids if isinstance(call_id, str) and call_id not in given]
        given.append(message.get("tool_call_id"))
    return []
