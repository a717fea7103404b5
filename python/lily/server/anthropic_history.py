"""The messages of Anthropic's API as clients send them, in the library's form. A history is not refused."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from lily.server.chat_history import History, reasoning_text
from lily.server.content_parts import PartReader
from lily.server.errors import ApiError
from lily.server.request_warnings import Warnings

__all__ = ["added_tools", "read_anthropic_messages", "read_system"]

# A coding client begins its system prompt with a line that differs in every request; no prefix would ever match.
_BILLING_HEADER = "x-anthropic-billing-header:"
_ROLES = ("user", "assistant", "system", "developer")


def read_system(system: Any, reader: PartReader) -> str:
    """The text of the field `system`."""
    if system is not None and not isinstance(system, (str, list)):
        raise ApiError(400, "system: must be a string or a list of blocks", param="system", code="invalid_value")
    lines = reader.text("system", system, between="\n\n").split("\n")
    return "\n".join(line for line in lines if not line.lower().startswith(_BILLING_HEADER)).lstrip("\n")


def read_anthropic_messages(
    system: str, messages: Sequence[Any], reader: PartReader, warnings: Warnings, *, system_role: bool
) -> History:
    """The conversation.

    Parameters
    ----------
    system
        The text of the field `system`.
    messages
        The field `messages`.
    reader, warnings
        Of the request.
    system_role
        Whether messages may have the role system; else the ApiError has the words by which clients fall back.
    """
    history = History(warnings)
    if system:
        history.add("system", {"role": "system", "content": system})
    last = {role: max((at for at, one in enumerate(messages) if _role(one) == role), default=-1) for role in _ROLES}
    for at, message in enumerate(messages):
        place = f"messages.{at}"
        role = _role(message)
        if role not in _ROLES:
            raise ApiError(400, f"{place}.role: must be 'user' or 'assistant'", param=f"{place}.role")
        content = message.get("content")
        if role in ("system", "developer"):
            if not system_role:
                raise ApiError(400, f"{place}.role: role 'system' is not supported here", param=f"{place}.role")
            passed = message.get("clear_at") == "next_user_message" and at < last["user"]
            text = "" if passed else reader.text(f"{place}.content", content)
            if text:
                history.add(place, {"role": "system", "content": text})
            continue
        if content is not None and not isinstance(content, (str, list)):
            raise ApiError(400, f"{place}.content: must be a string or a list of blocks", param=f"{place}.content")
        if role == "assistant":
            history.add(place, _answer(place, content, reader))
        else:
            _add_user(history, place, content, reader, asked=at == last["user"] > last["assistant"])
    return history


def added_tools(messages: Sequence[Any]) -> list[Any]:
    """Tools that blocks within the conversation define."""
    tools = []
    for message in messages:
        content = message.get("content") if isinstance(message, Mapping) else None
        for block in content if isinstance(content, list) else []:
            tool = block.get("tool") if isinstance(block, Mapping) and block.get("type") == "tool_addition" else None
            if isinstance(tool, Mapping) and isinstance(tool.get("definition"), Mapping):
                tools.append(tool["definition"])
    return tools


def _role(message: Any) -> Any:
    role = message.get("role") if isinstance(message, Mapping) else None
    return role if isinstance(role, str) else None


def _add_user(history: History, place: str, content: Any, reader: PartReader, *, asked: bool) -> None:
    if not isinstance(content, list):
        history.add(place, {"role": "user", "content": content or ""})
        return
    texts: list[str] = []
    results = 0
    for at, block in enumerate(content):
        where = f"{place}.content.{at}"
        if isinstance(block, Mapping) and block.get("type") == "tool_result":
            results += 1
            history.add(place, _result(where, block, reader))
        else:
            texts.append(_block_text(where, block, reader, asked=asked))
    if texts or not results:
        history.add(place, {"role": "user", "content": "".join(texts)})


def _block_text(where: str, block: Any, reader: PartReader, *, asked: bool = False) -> str:
    if not isinstance(block, (str, Mapping)):
        raise ApiError(400, f"{where}: must be a block with a type", param=where, code="invalid_value")
    holder = block if isinstance(block, str) or "type" in block else {**block, "type": "text"}
    return reader.text(where, holder, asked=asked)


def _result(where: str, block: Mapping[str, Any], reader: PartReader) -> dict[str, Any]:
    text = reader.text(f"{where}.content", block.get("content"))
    if block.get("is_error") is True and not text.lower().startswith("error"):
        text = f"Error: {text}"  # the template has no other place to say so
    given = block.get("tool_use_id")
    return {"role": "tool", "tool_call_id": None if given is None else str(given), "content": text}


def _answer(place: str, content: Any, reader: PartReader) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": content if isinstance(content, str) else ""}
    calls = []
    for at, block in enumerate(content if isinstance(content, list) else []):
        kind = block.get("type") if isinstance(block, Mapping) else None
        if kind == "tool_use":
            given, name, arguments = block.get("id"), block.get("name"), block.get("input")
            if not isinstance(name, str) or not name:
                continue
            text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
            function = {"name": name, "arguments": text}
            calls.append({"id": None if given is None else str(given), "type": "function", "function": function})
        elif kind == "thinking":
            message["reasoning_content"] = message.get("reasoning_content", "") + reasoning_text(block)
        else:
            message["content"] += _block_text(f"{place}.content.{at}", block, reader)
    return {**message, "tool_calls": calls} if calls else message
