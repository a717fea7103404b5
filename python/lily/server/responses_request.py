"""The input of OpenAI's Responses API as a conversation in the form of chat completions."""

from __future__ import annotations

from typing import Any

from lily.chat.grammars import check_response_format
from lily.errors import InvalidArgumentError
from lily.server.errors import ApiError, as_api_error, unsupported
from lily.server.fields import Fields
from lily.server.openai_fields import effort_of, sampling_of, template_options_of
from lily.server.service import Service
from lily.server.turns import ChatRequest

__all__ = ["responses_chat_request"]

_IGNORED = (
    "max_tool_calls",
    "metadata",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
)
_STATEFUL = {
    "previous_response_id": "this server keeps no responses; send the earlier items in input",
    "conversation": "this server keeps no conversations; send the earlier items in input",
    "background": "responses in the background are not supported; use stream",
    "prompt": "stored prompts are not supported; send instructions and input",
}
_TEXT_PARTS = ("input_text", "output_text", "text")
_INCLUDABLE = ("message.output_text.logprobs", "reasoning.encrypted_content")


def responses_chat_request(service: Service, fields: Fields) -> ChatRequest:
    """The conversation, tools and options of a request, but for whether it streams."""
    for name, remedy in _STATEFUL.items():
        if fields.any(name):
            raise unsupported(name, f"{name} is not supported: {remedy}")
    if fields.any("truncation", "disabled") != "disabled":
        raise unsupported("truncation", "only truncation 'disabled' is supported; leave out items that do not fit")
    conversation = _Conversation(fields.text("instructions"))
    conversation.read(fields.required("input"), fields)
    include = fields.items("include") or []
    if any(name not in _INCLUDABLE for name in include):
        raise unsupported("include", f"include knows {', '.join(_INCLUDABLE)} here")
    top = fields.integer("top_logprobs", 0, 20)
    with_logprobs = _INCLUDABLE[0] in include or bool(top)
    reasoning = Fields(fields.mapping("reasoning") or {}, "reasoning.")
    effort = effort_of(reasoning, "effort")
    template_options = template_options_of(fields)
    thinking = template_options.pop("enable_thinking", service.options.thinking if effort is None else effort != "none")
    if not isinstance(thinking, bool):
        raise fields.wrong("chat_template_kwargs", "an object whose enable_thinking is true or false", thinking)
    reasoning.ignore("summary", "generate_summary", "context")
    service.finish_fields(reasoning)
    fields.ignore(*_IGNORED)
    return ChatRequest(
        messages=conversation.messages,
        tools=[_tool(f"tools[{at}]", tool) for at, tool in enumerate(fields.items("tools") or [])],
        sampling=sampling_of(fields, service.model.default_sampling, service.model.sampled_vocab_size),
        thinking=thinking,
        options={
            "max_tokens": fields.integer("max_output_tokens", 1),
            "max_thinking_tokens": fields.integer("max_thinking_tokens", 0),
            "stop": fields.strings("stop", 16),
            "response_format": _format(service, fields),
            "tool_choice": _tool_choice(fields),
            "parallel_tool_calls": fields.flag("parallel_tool_calls", True),
            "logprobs": (top or 0) if with_logprobs else None,
        },
        preserve_thinking=template_options.pop("preserve_thinking", False) is True,
        later_system=service.options.later_system,
        template_options=template_options,
        places=conversation.places,
        format_field="text.format",
    )


class _Conversation:
    """Collects messages; what one answer consists of (reasoning, text and calls) becomes one message again."""

    def __init__(self, instructions: str | None) -> None:
        self.messages: list[dict[str, Any]] = []
        self.places: list[str] = []
        self._answer: dict[str, Any] | None = None  # the assistant's message that may go on
        if instructions:
            self._add("instructions", {"role": "system", "content": instructions})

    def read(self, given: Any, fields: Fields) -> None:
        """Take the request's input."""
        if isinstance(given, str):
            self._add("input", {"role": "user", "content": given})
            return
        if not isinstance(given, list) or not given:
            raise fields.wrong("input", "a string, or a list of items that is not empty", given)
        for at, item in enumerate(given):
            self._item(f"input[{at}]", item)

    def _item(self, place: str, item: Any) -> None:
        if not isinstance(item, dict):
            raise _invalid(place, "must be an object")
        kind = item.get("type", "message" if "role" in item else None)
        if kind == "message":
            self._message(place, item)
        elif kind == "reasoning":
            self._add_answer(place, "reasoning_content", _reasoning_text(place, item))
        elif kind == "function_call":
            name, arguments = item.get("name"), item.get("arguments", "")
            if not isinstance(name, str) or not isinstance(arguments, str):
                raise _invalid(place, "a function_call has a name and arguments, both strings")
            call = {"id": item.get("call_id"), "type": "function", "function": {"name": name, "arguments": arguments}}
            self._continued(place).setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            content = _text(f"{place}.output", item.get("output"))
            self._add(place, {"role": "tool", "tool_call_id": item.get("call_id"), "content": content})
        else:
            raise unsupported(place, f"{place}: items of type {str(kind)[:80]!r} are not supported by this server")

    def _message(self, place: str, item: dict[str, Any]) -> None:
        content = _text(f"{place}.content", item.get("content"))
        if item.get("role") == "assistant":
            self._add_answer(place, "content", content)
        else:
            self._add(place, {"role": item.get("role"), "content": content})

    def _add_answer(self, place: str, field: str, text: str) -> None:
        answer = self._continued(place)
        follows_calls = "tool_calls" in answer
        if follows_calls or (field == "reasoning_content" and answer["content"]):
            self._answer = None
            answer = self._continued(place)
        answer[field] = answer.get(field, "") + text

    def _continued(self, place: str) -> dict[str, Any]:
        if self._answer is None:
            answer: dict[str, Any] = {"role": "assistant", "content": ""}
            self._add(place, answer)
            self._answer = answer
        return self._answer

    def _add(self, place: str, message: dict[str, Any]) -> None:
        self._answer = None
        self.messages.append(message)
        self.places.append(place)


def _invalid(place: str, what: str) -> ApiError:
    return ApiError(400, f"{place}: {what}", param=place, code="invalid_value")


def _text(place: str, content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _invalid(place, "must be a string or a list of parts")
    return "".join(_part(f"{place}[{at}]", part) for at, part in enumerate(content))


def _part(place: str, part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "refusal":
        return str(part.get("refusal", ""))
    if kind not in _TEXT_PARTS:
        raise ApiError(
            400,
            f"{place} is of type {str(kind)[:80]!r}, but this model reads text only: no images, sound or files",
            param=place,
            code="unsupported_content",
        )
    text = part.get("text")
    if not isinstance(text, str):
        raise _invalid(place, "text must be a string")
    return text


def _reasoning_text(place: str, item: dict[str, Any]) -> str:
    parts = item.get("content") or item.get("summary") or []
    texts = [part.get("text") for part in parts if isinstance(part, dict)] if isinstance(parts, list) else [None]
    if not all(isinstance(text, str) for text in texts):
        raise _invalid(place, "content and summary of reasoning are lists of parts with a text")
    return "".join(map(str, texts))


def _tool(place: str, tool: Any) -> dict[str, Any]:
    if not isinstance(tool, dict):
        raise _invalid(place, "must be an object")
    if tool.get("type") != "function":
        kind = str(tool.get("type"))[:80]
        raise unsupported(place, f"{place}: tools of type {kind!r} are not supported; this server has functions only")
    if not isinstance(tool.get("name"), str):
        raise _invalid(place, "a function needs a name")
    function = {"name": tool["name"], "parameters": tool.get("parameters") or {"type": "object", "properties": {}}}
    if isinstance(tool.get("description"), str):
        function["description"] = tool["description"]
    return {"type": "function", "function": function}


def _tool_choice(fields: Fields) -> str | dict[str, Any] | None:
    choice = fields.any("tool_choice")
    if choice is not None and not isinstance(choice, (str, dict)):
        raise fields.wrong("tool_choice", "a string or an object", choice)
    if isinstance(choice, dict) and choice.get("type") != "function":
        raise unsupported("tool_choice", "tool_choice is auto, none, required or a function here")
    return choice


def _format(service: Service, fields: Fields) -> dict[str, Any] | None:
    text = Fields(fields.mapping("text") or {}, "text.")
    text.ignore("verbosity")
    given = text.mapping("format")
    service.finish_fields(text)
    try:
        check_response_format(given)
    except InvalidArgumentError as error:
        raise as_api_error(error, format_field="text.format") from error
    return given
