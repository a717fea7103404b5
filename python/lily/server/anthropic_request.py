"""Anthropic's messages as a conversation in OpenAI's form."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from lily.server.errors import ApiError, unsupported
from lily.server.fields import Fields
from lily.server.openai_fields import top_p_of
from lily.server.service import Service
from lily.server.turns import ChatRequest

__all__ = ["anthropic_chat_request"]

# A coding client begins its system prompt with a line that differs in every request; no prefix would ever match.
_BILLING_HEADER = "x-anthropic-billing-header:"
_THINKING = ("enabled", "adaptive", "disabled")


def anthropic_chat_request(service: Service, fields: Fields) -> ChatRequest:
    """The conversation, tools and options of a Messages request, but for max_tokens."""
    system = _system(fields.any("system"))
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    places = ["system"] * len(messages)
    given = fields.required("messages")
    if not isinstance(given, list) or not given:
        raise fields.wrong("messages", "a list that is not empty", given)
    for index, message in enumerate(given):
        place = f"messages.{index}"
        messages += _message(place, message)
        places += [place] * (len(messages) - len(places))
    thinking = fields.mapping("thinking") or {"type": "disabled"}
    if thinking.get("type") not in _THINKING:
        raise fields.wrong("thinking", f"an object whose type is one of {', '.join(_THINKING)}", thinking)
    choice = fields.mapping("tool_choice")
    default = service.model.default_sampling
    sampling: dict[str, Any] = {
        "temperature": fields.number("temperature", 0, 1),
        "top_p": top_p_of(fields),
        "top_k": fields.integer("top_k", 0),
    }
    budget = Fields(thinking, "thinking.").integer("budget_tokens", 0)
    options = {
        "stop": fields.strings("stop_sequences", 16),
        "tool_choice": _tool_choice(choice),
        "parallel_tool_calls": not Fields(choice or {}, "tool_choice.").flag("disable_parallel_tool_use", False),
        "max_thinking_tokens": budget,
    }
    fields.ignore("metadata", "service_tier", "context_management", "output_config", "betas", "inference_geo")
    return ChatRequest(
        messages=messages,
        tools=[_tool(f"tools.{index}", tool) for index, tool in enumerate(fields.items("tools") or [])],
        sampling=dataclasses.replace(default, **{name: one for name, one in sampling.items() if one is not None}),
        thinking=thinking["type"] != "disabled",
        options=options,
        later_system=service.options.later_system,
        places=places,
    )


def _system(system: Any) -> str:
    if system is None:
        return ""
    text = system if isinstance(system, str) else "\n\n".join(_texts("system", system))
    lines = text.split("\n")
    return "\n".join(line for line in lines if not line.lower().startswith(_BILLING_HEADER)).lstrip("\n")


def _texts(where: str, blocks: Any) -> list[str]:
    if isinstance(blocks, str):
        return [blocks]
    return [_text(f"{where}.{at}", block) for at, block in enumerate(_list(where, blocks))]


def _text(where: str, block: Any) -> str:
    kind = block.get("type") if isinstance(block, dict) else None
    if kind != "text" or not isinstance(block.get("text"), str):
        raise ApiError(400, f"{where}: a {kind!r} block is not supported here; this model reads text only", param=where)
    return str(block["text"])


def _list(where: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ApiError(400, f"{where}: must be a string or a list of blocks", param=where)
    return value


def _message(where: str, message: Any) -> list[dict[str, Any]]:
    role = message.get("role") if isinstance(message, dict) else None
    if role not in ("user", "assistant"):
        raise ApiError(400, f"{where}.role: must be 'user' or 'assistant'", param=f"{where}.role")
    content = message.get("content")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    blocks = _list(f"{where}.content", content)
    return (_user if role == "user" else _assistant)(f"{where}.content", blocks)


def _user(where: str, blocks: list[Any]) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = []
    texts: list[str] = []
    for at, block in enumerate(blocks):
        if isinstance(block, dict) and block.get("type") == "tool_result":
            text = "".join(_texts(f"{where}.{at}.content", block.get("content") or ""))
            if block.get("is_error") is True and not text.lower().startswith("error"):
                text = f"Error: {text}"  # the template has no other place to say so
            results.append({"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": text})
        else:
            texts.append(_text(f"{where}.{at}", block))
    return results + ([{"role": "user", "content": "".join(texts)}] if texts or not results else [])


def _assistant(where: str, blocks: list[Any]) -> list[dict[str, Any]]:
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    calls = []
    for at, block in enumerate(blocks):
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "tool_use":
            function = {"name": str(block.get("name")), "arguments": json.dumps(block.get("input") or {})}
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        elif kind == "thinking":
            message["reasoning_content"] = message.get("reasoning_content", "") + str(block.get("thinking", ""))
        elif kind != "redacted_thinking":
            message["content"] += _text(f"{where}.{at}", block)
    return [{**message, "tool_calls": calls} if calls else message]


def _tool(where: str, tool: Any) -> dict[str, Any]:
    if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
        raise ApiError(400, f"{where}.name: a tool needs a name", param=f"{where}.name")
    if tool.get("type") not in (None, "custom"):
        raise unsupported(where, f"{where}: tools of type {tool['type']!r} run on Anthropic's servers only")
    function = {"name": tool["name"], "parameters": tool.get("input_schema") or {"type": "object"}}
    if isinstance(tool.get("description"), str):
        function["description"] = tool["description"]
    return {"type": "function", "function": function}


def _tool_choice(choice: dict[str, Any] | None) -> str | dict[str, Any] | None:
    if choice is None:
        return None
    kind = choice.get("type")
    return {"type": "tool", "name": choice.get("name")} if kind == "tool" else str(kind)
