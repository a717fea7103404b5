"""The messages of chat completions as clients send them, in the library's form. A history is not refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from lily.server.content_parts import PartReader
from lily.server.errors import ApiError
from lily.server.message_roles import known_messages
from lily.server.request_warnings import Warnings
from lily.server.tool_definitions import CUSTOM_INPUT

__all__ = [
    "History",
    "answer_of",
    "call_of_block",
    "is_result",
    "read_chat_messages",
    "reasoning_text",
    "result_of_block",
]

_SYSTEM_ROLES = ("system", "developer")
_THINKING_PARTS = ("thinking", "reasoning", "redacted_thinking")
_REASONING_FIELDS = (
    "reasoning_content",
    "reasoning",
    "reasoning_text",
    "thinking",
    "thought",
    "reasoning_details",
    "thinking_blocks",
    "provider_specific_fields",
)
_NO_RESULT = "(no result)"


class History:
    """A conversation under construction: its messages, and the place of each in the request.

    Attributes
    ----------
    messages : list of dict
        As the library takes them.
    places : list of str
        Their places in the request, for errors.
    """

    def __init__(self, warnings: Warnings) -> None:
        self.messages: list[dict[str, Any]] = []
        self.places: list[str] = []
        self._warnings = warnings

    def add(self, place: str, message: dict[str, Any]) -> None:
        """Append a message."""
        self.messages.append(message)
        self.places.append(place)

    def finish(self, *, strict: bool, keep_thinking: bool = False) -> bool:
        """Make the conversation answerable. Returns whether the last message is the beginning of the answer.

        Empty answers are dropped: at the end, and before a question. Calls at the end get results which say that there
        are none. A conversation that begins with an answer or has no question, because its beginning was cut off, gets
        an empty question.

        Parameters
        ----------
        strict
            Refuse system messages within the conversation, and change nothing else.
        keep_thinking
            Whether the thinking of earlier answers reaches the prompt; if so, an answer with only thinking is not
            empty.
        """
        while self.messages and _is_empty_answer(self.messages[-1]):
            self.messages.pop()
            self.places.pop()
        if strict:
            self._refuse_later_system()
        if strict:
            return bool(self.messages and self.messages[-1]["role"] == "assistant")
        self._drop_silent_answers(keep_thinking)
        if not self.messages:
            self._warnings.add("messages: none of them can be read; an empty user message replaces them")
            self.add("messages", {"role": "user", "content": ""})
        last = self.messages[-1]
        if last["role"] == "assistant" and last.get("tool_calls"):
            self._warnings.add(f"{self.places[-1]}: the results of its tool calls are missing")
            for call in list(last["tool_calls"]):
                self.add(self.places[-1], {"role": "tool", "tool_call_id": call.get("id"), "content": _NO_RESULT})
        self._complete_beginning()
        self._tell_of_later_system()
        return bool(self.messages[-1]["role"] == "assistant")

    def _drop_silent_answers(self, keep_thinking: bool) -> None:
        """Leave out answers without text that are followed by a question, such as those cut off in their thinking.

        The template would drop their thinking, and an empty turn is an example that the model may follow.
        """
        questions = [at for at, one in enumerate(self.messages) if one["role"] in ("user", *_SYSTEM_ROLES)]
        last = questions[-1] if questions else -1
        kept = []
        for at, message in enumerate(self.messages):
            if at < last and _is_empty_answer(message if keep_thinking else {**message, "reasoning_content": ""}):
                self._warnings.add(f"{self.places[at]}: an answer without text is left out")
            else:
                kept.append(at)
        self.messages = [self.messages[at] for at in kept]
        self.places = [self.places[at] for at in kept]

    def _tell_of_later_system(self) -> None:
        begun = False
        for place, message in zip(self.places, self.messages, strict=True):
            if begun and message["role"] in _SYSTEM_ROLES:
                self._warnings.add(
                    f"{place}: a {message['role']} message after the conversation has begun becomes a user message, "
                    "and so does every later one"
                )
                return
            begun = begun or message["role"] not in _SYSTEM_ROLES

    def _refuse_later_system(self) -> None:
        begun = False
        for place, message in zip(self.places, self.messages, strict=True):
            if begun and message["role"] in _SYSTEM_ROLES:
                what = f"a {message['role']} message after the conversation has begun; put it first"
                raise ApiError(400, f"{place} is {what} (this server runs with --strict)", param=place)
            begun = begun or message["role"] not in _SYSTEM_ROLES

    def _complete_beginning(self) -> None:
        leading = next((at for at, one in enumerate(self.messages) if one["role"] not in _SYSTEM_ROLES), -1)
        if leading < 0:
            self._warnings.add("there is no user message: the last system message is treated as one")
            self.messages[-1] = {**self.messages[-1], "role": "user"}
        elif self.messages[leading]["role"] != "user":
            self._warnings.add(f"{self.places[leading]}: no user message comes before it; an empty one was inserted")
            self.messages.insert(leading, {"role": "user", "content": ""})
            self.places.insert(leading, self.places[leading])


def _is_empty_answer(message: Mapping[str, Any]) -> bool:
    if message["role"] != "assistant" or message.get("tool_calls"):
        return False
    return not any(str(message.get(field) or "").strip() for field in ("content", "reasoning_content"))


def read_chat_messages(messages: Sequence[Any], reader: PartReader, warnings: Warnings, *, strict: bool) -> History:
    """The conversation; an ApiError for unreadable parts of the current message, and with `strict` for all others."""
    history = History(warnings)
    known = known_messages([f"messages[{at}]" for at in range(len(messages))], messages, warnings, strict=strict)
    turns = [place for place, one in known if one["role"] in ("user", "assistant")]
    for place, message in known:
        role = message["role"]
        if role == "assistant":
            history.add(place, answer_of(place, message, reader, warnings))
        elif role == "tool":
            history.add(place, _result(place, message, reader))
        elif role == "user" and any(map(is_result, content_blocks(message))):
            _add_blocks(history, place, content_blocks(message), reader)
        else:
            asked = role == "user" and place == turns[-1]
            history.add(
                place, {"role": role, "content": reader.text(f"{place}.content", message.get("content"), asked=asked)}
            )
    return history


def _add_blocks(history: History, place: str, blocks: list[Any], reader: PartReader) -> None:
    """Tool results, followed by what the user says beside them; an image there was made by a tool."""
    texts = []
    for at, block in enumerate(blocks):
        where = f"{place}.content[{at}]"
        if is_result(block):
            history.add(place, result_of_block(where, block, reader))
        else:
            texts.append(reader.part(where, block))
    if texts:
        history.add(place, {"role": "user", "content": "".join(texts)})


def content_blocks(message: Mapping[str, Any]) -> list[Any]:
    """The blocks of a message's content, which may also be a single block."""
    content = message.get("content")
    return content if isinstance(content, list) else [content]


def is_result(block: Any) -> bool:
    """Whether a block is the result of a tool, as Anthropic's API has them."""
    return isinstance(block, Mapping) and block.get("type") == "tool_result"


def result_of_block(
    where: str, block: Mapping[str, Any], reader: PartReader, join: Callable[[Iterable[str]], str] = "".join
) -> dict[str, Any]:
    """The message that such a block stands for; `join` as for `PartReader.text`."""
    text = reader.text(f"{where}.content", block.get("content"), join=join)
    if block.get("is_error") is True and not text.lower().startswith("error"):
        text = f"Error: {text}"  # the template has no other place for it
    given = block.get("tool_use_id")
    return {"role": "tool", "tool_call_id": None if given is None else str(given), "content": text}


def call_of_block(block: Any) -> dict[str, Any] | None:
    """The call in a `tool_use` block; None for other blocks, and for calls without a name."""
    if not isinstance(block, Mapping) or block.get("type") != "tool_use":
        return None
    given, name, arguments = block.get("id"), block.get("name"), block.get("input")
    if not isinstance(name, str) or not name:
        return None
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
    function = {"name": name, "arguments": text}
    return {"id": None if given is None else str(given), "type": "function", "function": function}


def _result(place: str, message: Mapping[str, Any], reader: PartReader) -> dict[str, Any]:
    given = message.get("tool_call_id") or message.get("name")
    return {
        "role": "tool",
        "tool_call_id": None if given is None else str(given),
        "content": reader.text(f"{place}.content", message.get("content")),
    }


def answer_of(place: str, message: Mapping[str, Any], reader: PartReader, warnings: Warnings) -> dict[str, Any]:
    """An answer in the form of chat completions, as the library takes it."""
    content = message.get("content")
    content = [content] if isinstance(content, Mapping) else content
    parts = content if isinstance(content, list) else [content]
    inner: list[Mapping[str, Any]] = [part for part in parts if part is not None and _is_inner(part)]
    texts = [part for part in parts if not _is_inner(part)] if isinstance(content, list) else content
    text = reader.text(f"{place}.content", texts)
    answer: dict[str, Any] = {"role": "assistant", "content": text or _string(message.get("refusal"))}
    reasoning = next(filter(None, (reasoning_text(message.get(field)) for field in _REASONING_FIELDS)), "")
    reasoning = reasoning or "".join(reasoning_text(part) for part in inner if part["type"] != "tool_use")
    if reasoning:
        answer["reasoning_content"] = reasoning
    calls = _calls(place, message, warnings) or [call for call in map(call_of_block, inner) if call is not None]
    if calls:
        answer["tool_calls"] = calls
    return answer


def _is_inner(part: Any) -> bool:
    """Whether a part is thinking or a call, and so not content."""
    return isinstance(part, Mapping) and part.get("type") in (*_THINKING_PARTS, "tool_use")


def _calls(place: str, message: Mapping[str, Any], warnings: Warnings) -> list[dict[str, Any]]:
    given = message.get("tool_calls")
    given = [given] if isinstance(given, Mapping) else given
    calls = [_call(call) for call in given] if isinstance(given, list) else []
    legacy = message.get("function_call")
    if not calls and isinstance(legacy, Mapping):
        call = _call({"function": legacy})
        calls = [None if call is None else {**call, "id": call["function"]["name"]}]
    if None in calls:
        warnings.add(f"{place}: a tool call without a name is left out")
    return [call for call in calls if call is not None]


def _call(call: Any) -> dict[str, Any] | None:
    if not isinstance(call, Mapping):
        return None
    custom = call.get("custom")
    function = call.get("function")
    name: Any
    arguments: Any
    if isinstance(custom, Mapping):
        name, arguments = custom.get("name"), json.dumps({CUSTOM_INPUT: custom.get("input")}, ensure_ascii=False)
    else:
        body = function if isinstance(function, Mapping) else call
        name, arguments = body.get("name"), body.get("arguments")
    if not isinstance(name, str) or not name:
        return None
    given = call.get("id")
    return {
        "id": None if given is None else str(given),
        "type": "function",
        "function": {"name": name, "arguments": "" if arguments is None else arguments},
    }


def reasoning_text(value: Any, depth: int = 8) -> str:
    """The text of an answer's thinking, in any of the forms that clients have for it."""
    if isinstance(value, str):
        return value
    if depth and isinstance(value, Mapping):
        fields = (
            value.get(field) for field in ("text", "thinking", "reasoning", "reasoning_content", "content", "summary")
        )
        return next(filter(None, (reasoning_text(field, depth - 1) for field in fields)), "")
    if depth and isinstance(value, list):
        return "".join(reasoning_text(item, depth - 1) for item in value)
    return ""


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""
