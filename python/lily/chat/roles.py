"""The role policy: brings OpenAI-style messages into the order that the chat template accepts, or says why not."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

from lily.checks.arguments import as_items, one_of
from lily.checks.quoting import quoted
from lily.errors import TemplateError
from lily.text.messages import prepare_messages

__all__ = ["LaterSystem", "copied_messages", "normalize_messages"]

LaterSystem = Literal["refuse", "convert"]

_SYSTEM_ROLES = ("system", "developer")
_ROLES = (*_SYSTEM_ROLES, "user", "assistant", "tool")
_TEXT_PARTS = ("text", "input_text", "output_text")


def normalize_messages(
    messages: Iterable[Mapping[str, Any]], *, later_system: LaterSystem = "refuse"
) -> list[dict[str, Any]]:
    """Return a copy of `messages` that the template accepts; the input is unchanged.

    Leading system and developer messages are merged into one system message. Text parts are joined. Tool results are
    put into the order of their calls, because the model sees only the order.

    Parameters
    ----------
    messages
        Mappings with ``role`` and ``content``.
    later_system
        What to do with a system or developer message after the first other one: "refuse" it, or "convert" it to a
        user message at its place.

    Raises
    ------
    TemplateError
        The list is not a conversation that a model can answer; the error has the message's index and the reason.
    """
    one_of("later_system", later_system, get_args(LaterSystem))
    given = prepare_messages(_checked(index, message) for index, message in enumerate(copied_messages(messages)))
    leading = next((at for at, message in enumerate(given) if message["role"] not in _SYSTEM_ROLES), len(given))
    system = [message["content"] for message in given[:leading] if message["content"]]
    merged: list[dict[str, Any]] = []
    if leading:
        merged.append({**given[0], "role": "system", "content": "\n\n".join(system)})
    for index in range(leading, len(given)):
        message = given[index]
        if message["role"] in _SYSTEM_ROLES:
            if later_system == "refuse":
                raise TemplateError(
                    f"message {index} is a {message['role']} message after the conversation has begun; put it first, "
                    'or convert such messages to user messages (later_system="convert")'
                )
            message = {**message, "role": "user"}
        merged.append(message)
    _check_beginning(given, leading)
    return _in_order_of_calls(merged)


def copied_messages(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Copies of messages; TemplateError for something else."""
    copies: list[dict[str, Any]] = []
    kind = f"a {type(messages).__name__}"
    for index, message in enumerate(as_items("messages", messages, "a list of mappings", TemplateError, kind)):
        if not isinstance(message, Mapping):
            raise TemplateError(f"message {index} must be a mapping, not a {type(message).__name__}")
        copies.append(dict(message))
    return copies


def _checked(index: int, message: dict[str, Any]) -> dict[str, Any]:
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise TemplateError(f"message {index} has the role {quoted(role)}; roles are {', '.join(_ROLES)}")
    call_id = message.get("tool_call_id")
    if role == "tool" and not isinstance(call_id, (str, type(None))):
        raise TemplateError(f"message {index}: tool_call_id must be a string, not a {type(call_id).__name__}")
    return {**message, "content": _text(f"message {index}", role, message.get("content"))}


def _text(where: str, role: str, content: Any) -> str:
    if content is None:
        if role == "user":
            raise TemplateError(f"{where}: a user message must have content")
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence) and not isinstance(content, bytes):
        return "".join(_part_text(f"{where}, part {at}", part) for at, part in enumerate(content))
    if role == "tool" and isinstance(content, (Mapping, int, float)):
        try:
            return json.dumps(content, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise TemplateError(f"{where}: content cannot be written as JSON ({quoted(str(error))})") from None
    raise TemplateError(f"{where}: content must be a string or a list of parts, not a {type(content).__name__}")


def _part_text(where: str, part: Any) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise TemplateError(f"{where} must be a mapping with a type, not a {type(part).__name__}")
    kind = part.get("type", "text")
    if kind == "refusal" and isinstance(part.get("refusal"), str):
        return str(part["refusal"])
    if kind not in _TEXT_PARTS:
        raise TemplateError(
            f"{where} is of type {quoted(kind)}; this engine reads text only, no images, audio or files"
        )
    text = part.get("text")
    if not isinstance(text, str):
        raise TemplateError(f"{where}: text must be a string, not a {type(text).__name__}")
    return text


def _check_beginning(given: Sequence[Mapping[str, Any]], leading: int) -> None:
    if not given:
        raise TemplateError("there are no messages; at least one user message is needed")
    if leading == len(given):
        raise TemplateError("there are only system messages; at least one user message is needed")
    if given[leading]["role"] == "tool":
        raise TemplateError(
            f"message {leading} is the result of a tool whose call is missing: the conversation must not begin with it"
        )
    roles = {message["role"] for message in given[leading:]}
    if "user" not in roles and not roles & set(_SYSTEM_ROLES):
        raise TemplateError("there is no user message; at least one is needed")


def _in_order_of_calls(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    ordered: list[dict[str, Any]] = []
    at = 0
    while at < len(messages):
        end = at
        while end < len(messages) and messages[end]["role"] == "tool":
            end += 1
        if end == at:
            ordered.append(messages[at])
            at += 1
            continue
        order = _call_order(ordered[-1]) if ordered else {}
        results = messages[at:end]
        if all(message.get("tool_call_id") in order for message in results):
            results.sort(key=lambda message: order[message["tool_call_id"]])
        ordered += results
        at = end
    return ordered


def _call_order(message: Mapping[str, Any]) -> dict[Any, int]:
    calls = message.get("tool_calls")
    if not isinstance(calls, (list, tuple)):
        return {}
    ids = [call.get("id") for call in calls if isinstance(call, Mapping)]
    return {call_id: at for at, call_id in enumerate(ids) if isinstance(call_id, str)}
