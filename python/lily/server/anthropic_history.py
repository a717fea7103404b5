"""The messages of Anthropic's API as clients send them, in the library's form. A history is not refused."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from lily.server.chat_history import History, answer_of, call_of_block, is_result, reasoning_text, result_of_block
from lily.server.content_parts import PartReader, in_lines, is_part
from lily.server.errors import ApiError
from lily.server.message_roles import known_messages
from lily.server.request_warnings import Warnings

__all__ = ["added_tools", "read_anthropic_messages", "read_system"]

# Coding clients begin their system prompt with a line that differs in every request; with it no prefix would match.
_BILLING_HEADER = "x-anthropic-billing-header:"


def read_system(system: Any, reader: PartReader) -> str:
    """The text of the field `system`."""
    lines = reader.text("system", system, join="\n\n".join).split("\n")
    return "\n".join(line for line in lines if not line.lower().startswith(_BILLING_HEADER)).lstrip("\n")


def read_anthropic_messages(
    system: str,
    messages: Sequence[Any],
    reader: PartReader,
    warnings: Warnings,
    *,
    strict: bool,
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
    strict
        Refuse unknown roles, and the role system with the wording that makes clients fall back.
    """
    history = History(warnings)
    if system:
        history.add("system", {"role": "system", "content": system})
    known = known_messages([f"messages.{at}" for at in range(len(messages))], messages, warnings, strict=strict)
    last = {role: at for at, (_, one) in enumerate(known) for role in [one["role"]]}
    last_question, last_answer = last.get("user", -1), last.get("assistant", -1)
    for at, (place, message) in enumerate(known):
        role, content = message["role"], message.get("content")
        if role in ("system", "developer"):
            if strict:
                raise ApiError(400, f"{place}.role: role 'system' is not supported here", param=f"{place}.role")
            passed = message.get("clear_at") == "next_user_message" and at < last_question
            text = "" if passed else reader.text(f"{place}.content", content, join=in_lines)
            if text:
                history.add(place, {"role": "system", "content": text})
        elif role == "assistant":
            history.add(place, _answer(place, message, reader, warnings))
        elif role == "tool":
            _add_results(history, place, message, reader)
        else:
            _add_user(history, place, _blocks(content), reader, asked=at == last_question > last_answer)
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


def _blocks(content: Any) -> list[Any]:
    """The blocks of a content, which may also be a text or a single block."""
    if isinstance(content, list):
        return content
    if isinstance(content, Mapping) and not is_part(content):
        return [json.dumps(content, ensure_ascii=False)]
    return [] if content is None else [content]


def _add_user(history: History, place: str, blocks: list[Any], reader: PartReader, *, asked: bool) -> None:
    texts: list[str] = []
    results = 0
    asked = asked and not any(map(is_result, blocks))  # an image beside results was made by a tool
    for at, block in enumerate(blocks):
        where = f"{place}.content.{at}"
        if is_result(block):
            results += 1
            history.add(place, result_of_block(where, block, reader, in_lines))
        else:
            texts.append(reader.part(where, block, asked=asked))
    if texts or not results:
        history.add(place, {"role": "user", "content": in_lines(texts)})


def _add_results(history: History, place: str, message: Mapping[str, Any], reader: PartReader) -> None:
    """The results in a message of the role tool, as chat completions have it."""
    blocks = _blocks(message.get("content"))
    if any(map(is_result, blocks)):
        _add_user(history, place, blocks, reader, asked=False)
    else:
        given = next(filter(None, (message.get(name) for name in ("tool_use_id", "tool_call_id", "name"))), None)
        history.add(place, result_of_block(place, {**message, "tool_use_id": given}, reader, in_lines))


def _answer(place: str, message: Mapping[str, Any], reader: PartReader, warnings: Warnings) -> dict[str, Any]:
    blocks = _blocks(message.get("content"))
    answer = answer_of(place, {**message, "content": None}, reader, warnings)  # fields beside the blocks
    calls = answer.pop("tool_calls", [])
    texts: list[str] = []
    thoughts: list[str] = []
    for at, block in enumerate(blocks):
        kind = block.get("type") if isinstance(block, Mapping) else None
        if kind == "tool_use":
            call = call_of_block(block)
            if call is None:
                warnings.add(f"{place}: a tool call without a name is left out")
            else:
                calls.append(call)
        elif kind == "thinking":
            thoughts.append(reasoning_text(block))
        else:
            texts.append(reader.part(f"{place}.content.{at}", block))
    answer["content"] = "".join(texts) or answer["content"]
    if any(thoughts):
        answer["reasoning_content"] = "\n\n".join(filter(None, thoughts))
    return {**answer, "tool_calls": calls} if calls else answer
