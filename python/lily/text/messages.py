"""Brings chat messages into the form that chat templates expect.

Policy about roles (merging leading system messages, converting later ones) belongs in `lily.chat.roles`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lily.checks.arguments import as_items
from lily.checks.quoting import quoted
from lily.errors import TemplateError

__all__ = ["answerable", "prepare_messages", "template_value", "whole_characters"]

_DEPTH = 128  # levels of values in messages and tools; templates recurse through them
_RAW_ARGUMENTS = "arguments"  # the parameter for arguments that are not an object


def prepare_messages(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a copy of `messages` that a template can render; the input is unchanged.

    A ``developer`` message at index 0 becomes a ``system`` message. Tool-call arguments given as a JSON string, as in
    OpenAI's format, become a mapping. Contents of a history are never refused: arguments that are not a JSON object
    (perhaps cut off) become the text of one parameter; an empty string and null mean no arguments; a tool message
    without content gets an empty text.

    Raises
    ------
    TemplateError
        A message is not a mapping with a role, or its tool calls are not a list of mappings; the error has the
        message's index.
    """
    given = as_items("messages", messages, "a list of mappings", TemplateError, f"a {type(messages).__name__}")
    return [_prepare(index, message) for index, message in enumerate(given)]


def answerable(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Prepared messages without empty answers at the end, which some clients send."""
    given = as_items("messages", messages, "a list of mappings", TemplateError, f"a {type(messages).__name__}")
    while given and isinstance(given[-1], Mapping) and _is_empty_answer(given[-1]):
        given.pop()
    return given


def template_value(value: Any, where: str, depth: int = _DEPTH) -> Any:
    """A copy of a JSON value; lone surrogates in texts become U+FFFD.

    Raises
    ------
    TemplateError
        It is not a JSON value, or is nested too deeply.
    """
    if isinstance(value, str):
        return whole_characters(str(value))
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if depth == 0:
        raise TemplateError(f"{where}: values are nested more than {_DEPTH} levels deep")
    if isinstance(value, Mapping):
        return {template_value(key, where, 0): template_value(item, where, depth - 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [template_value(item, where, depth - 1) for item in value]
    raise TemplateError(f"{where}: a {type(value).__name__} is not JSON serializable; give its text")


def whole_characters(text: str) -> str:
    """The text with U+FFFD in place of lone surrogates, which UTF-8 cannot encode."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _is_empty_answer(message: Mapping[str, Any]) -> bool:
    if message.get("role") != "assistant" or message.get("tool_calls"):
        return False
    content = message.get("content")
    parts = content if isinstance(content, (list, tuple)) else [content]
    texts = [part.get("text", part) if isinstance(part, Mapping) else part for part in parts]
    return not message.get("reasoning_content") and not any(texts)


def _prepare(index: int, message: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise TemplateError(f"message {index} must be a mapping, not a {type(message).__name__}")
    prepared = dict(message)
    role = prepared.get("role")
    if not isinstance(role, str):
        raise TemplateError(f"message {index} must have a role string, but its role is {quoted(role)}")
    if index == 0 and role == "developer":
        prepared["role"] = "system"
    if role == "tool" and prepared.get("content") is None:
        prepared["content"] = ""
    calls = prepared.get("tool_calls")
    if not isinstance(calls, (str, int, Mapping, type(None))) or calls:
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
        prepared["function"] = _with_mapped_arguments(function)
        return prepared
    return _with_mapped_arguments(prepared)


def _with_mapped_arguments(function: Mapping[str, Any]) -> dict[str, Any]:
    return {**function, "arguments": _mapped(function["arguments"])} if "arguments" in function else dict(function)


def _mapped(arguments: Any) -> Mapping[str, Any]:
    if arguments is None:
        return {}
    if isinstance(arguments, Mapping):
        return arguments if _is_shallow(arguments) else {_RAW_ARGUMENTS: _as_text(arguments)}
    if not isinstance(arguments, str):
        return {_RAW_ARGUMENTS: _as_text(arguments)}
    try:
        parsed = json.loads(arguments) if arguments.strip() else None
    except (ValueError, RecursionError):
        return {_RAW_ARGUMENTS: arguments}
    if parsed is None:
        return {}
    return parsed if isinstance(parsed, dict) and _is_shallow(parsed) else {_RAW_ARGUMENTS: arguments}


def _as_text(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return quoted(value)


def _is_shallow(value: Any, depth: int = _DEPTH - 8) -> bool:
    if isinstance(value, Mapping):
        value = list(value.values())
    if not isinstance(value, (list, tuple)):
        return True
    return depth > 0 and all(_is_shallow(item, depth - 1) for item in value)
