"""The items of OpenAI's Responses API as clients send them, in the form that the library takes.

No history is refused: actions of built-in tools become calls with their results, and a placeholder replaces unreadable
items.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from typing import Any

from lily.server.chat_history import History, answer_of, reasoning_text
from lily.server.content_parts import PartReader, placeholder
from lily.server.errors import ApiError, unsupported
from lily.server.message_roles import known_messages
from lily.server.request_warnings import Warnings
from lily.server.tool_definitions import CUSTOM_INPUT, RequestTools

__all__ = ["ResponsesReader", "as_item", "sealed_reasoning"]

_SEAL = "lily1."
#: Calls of built-in tools, with the field that has their input.
_OTHER_CALLS = {
    "local_shell_call": "action",
    "shell_call": "action",
    "apply_patch_call": "operation",
    "computer_call": "action",
    "tool_search_call": "arguments",
    "mcp_call": "arguments",
    "mcp_approval_request": "arguments",
    "web_search_call": "action",
    "file_search_call": "queries",
    "code_interpreter_call": "code",
    "image_generation_call": "revised_prompt",
    "program": "code",
}
#: Fields in which such calls contain their own results.
_OWN_RESULTS = ("output", "outputs", "results", "result", "error")
#: Parts of messages, which some clients send as items.
_PARTS = ("text", "input_text", "input_image", "input_file", "input_audio", "output_text", "refusal")
_NOT_ASKING = ("assistant", "system", "developer", "tool", "function")
_SILENT = ("compaction_trigger", "configuration_update", "mcp_list_tools", "additional_tools", "context_compaction")


def sealed_reasoning(text: str) -> str:
    """The thinking as an opaque text, which clients that do not keep plain thinking send back."""
    return _SEAL + base64.b64encode(text.encode("utf-8", "replace")).decode()


def _unsealed(text: Any) -> str:
    if not isinstance(text, str) or not text.startswith(_SEAL):
        return ""
    try:
        return base64.b64decode(text.removeprefix(_SEAL), validate=True).decode()
    except (ValueError, binascii.Error):
        return ""


class ResponsesReader:
    """Collects messages; the parts of an answer (reasoning, text and calls) become one message again."""

    def __init__(
        self,
        reader: PartReader,
        warnings: Warnings,
        tools: RequestTools,
        find_item: Callable[[str], Mapping[str, Any] | None],
        *,
        strict: bool,
    ) -> None:
        """
        Parameters
        ----------
        reader, warnings, tools
            Of the request.
        find_item
            Looks up a stored item.
        strict
            Refuse items of unknown types.
        """
        self.history = History(warnings)
        self._reader = reader
        self._warnings = warnings
        self._tools = tools
        self._find_item = find_item
        self._strict = strict
        self._answer: dict[str, Any] | None = None  # the assistant's message that may still grow

    def add_system(self, given: Any) -> None:
        """Take the instructions: a text, or items."""
        parts = given if isinstance(given, list) else [given]
        contents = [one.get("content", one) if isinstance(one, Mapping) else one for one in parts]
        text = "\n\n".join(filter(None, (self._reader.text("instructions", content) for content in contents)))
        if text:
            self._add("instructions", {"role": "system", "content": text})

    def read(self, name: str, items: list[Any]) -> None:
        """Take items; `name` is the field that they come from."""
        known = [(f"{name}[{at}]", self._known(f"{name}[{at}]", item)) for at, item in enumerate(items)]
        newest = max((at for at, (_, one) in enumerate(known) if _is_answer(one) or _is_question(one)), default=-1)
        told = max((at for at, (_, one) in enumerate(known) if one is not None and _is_told(one)), default=-1)
        for at, (place, item) in enumerate(known):
            if item is not None:
                self._item(place, item, asked=at == newest, last=at > told)

    def _known(self, place: str, item: Any) -> Mapping[str, Any] | None:
        """An item with a type; None, with a warning, for anything else."""
        known = as_item(item)
        if self._strict and (known is None or not _is_described(item)):
            raise _invalid(place, "an item is an object and has a type")
        if known is None:
            self._warnings.add(f"{place} is left out, because it is not an item")
        return known

    def _item(self, place: str, item: Mapping[str, Any], *, asked: bool, last: bool) -> None:
        kind = str(item["type"])
        if kind == "message":
            for _, message in known_messages([place], [item], self._warnings, strict=self._strict):
                self._message(place, message, asked)
        elif kind == "reasoning":
            thought = reasoning_text(item.get("content")) or _unsealed(item.get("encrypted_content"))
            summary = item.get("summary")
            parts = map(reasoning_text, summary if isinstance(summary, list) else [summary])
            self._add_answer(place, "reasoning_content", thought or "\n\n".join(filter(None, parts)))
        elif kind == "function_call":
            self._call(place, item, item.get("name"), item.get("arguments"))
        elif kind == "custom_tool_call":
            text = json.dumps({CUSTOM_INPUT: item.get("input")}, ensure_ascii=False)
            self._call(place, item, item.get("name"), text)
        elif kind == "item_reference":
            self._reference(place, item, asked=asked, last=last)
        elif kind in _OTHER_CALLS:
            self._other_call(place, kind, item)
        elif kind == "mcp_approval_response":
            said = "approved" if item.get("approve") is True else f"refused {item.get('reason') or ''}".rstrip()
            self._result(place, kind, {"call_id": item.get("approval_request_id"), "output": said})
        elif kind.endswith("_output"):
            self._result(place, kind, item)
        elif kind not in _SILENT:
            self._unknown(place, kind, item, last=last)

    def _message(self, place: str, item: Mapping[str, Any], asked: bool) -> None:
        role = item["role"]
        if role == "tool":
            given = next(filter(None, (item.get(name) for name in ("call_id", "tool_call_id", "name"))), None)
            self._result(place, "message", {"call_id": given, "output": item.get("content")})
        elif role == "assistant":
            answer = answer_of(place, item, self._reader, self._warnings)
            if "reasoning_content" in answer:
                self._add_answer(place, "reasoning_content", answer["reasoning_content"])
            self._add_answer(place, "content", answer["content"])
            for call in answer.get("tool_calls", ()):
                self._call(place, call, call["function"]["name"], call["function"]["arguments"])
        else:
            text = self._reader.text(f"{place}.content", item.get("content"), asked=asked and role == "user")
            self._add(place, {"role": role, "content": text})

    def _call(self, place: str, item: Mapping[str, Any], name: Any, arguments: Any) -> None:
        if not isinstance(name, str) or not name:
            self._warnings.add(f"{place}: a call without a name is left out")
            return
        given = item.get("call_id") or item.get("id")
        function = {
            "name": self._tools.given_name(name, item.get("namespace")),
            "arguments": "" if arguments is None else arguments,
        }
        call = {"id": None if given is None else str(given), "type": "function", "function": function}
        self._continued(place).setdefault("tool_calls", []).append(call)

    def _other_call(self, place: str, kind: str, item: Mapping[str, Any]) -> None:
        asked = item.get(_OTHER_CALLS[kind])
        name = item.get("name")
        arguments = asked if isinstance(asked, (str, Mapping)) else {"arguments": asked}
        if isinstance(arguments, str) and kind not in ("mcp_call", "mcp_approval_request"):
            arguments = {_OTHER_CALLS[kind]: arguments}
        self._call(place, item, name if isinstance(name, str) and name else kind.removesuffix("_call"), arguments)
        own = next((item[field] for field in _OWN_RESULTS if item.get(field)), None)
        if own is not None:
            given = item.get("call_id") or item.get("id")
            text = placeholder("image", {}) if kind == "image_generation_call" else self._reader.text(place, own)
            self._add(place, {"role": "tool", "tool_call_id": None if given is None else str(given), "content": text})

    def _result(self, place: str, kind: str, item: Mapping[str, Any]) -> None:
        given = item.get("call_id") or item.get("id")
        field = "tools" if kind == "tool_search_output" else "result" if kind == "program_output" else "output"
        text = self._reader.text(f"{place}.{field}", item.get(field))
        self._add(place, {"role": "tool", "tool_call_id": None if given is None else str(given), "content": text})

    def _reference(self, place: str, item: Mapping[str, Any], *, asked: bool, last: bool) -> None:
        name = item.get("id")
        found = self._find_item(name) if isinstance(name, str) else None
        known = None if found is None else self._known(place, found)
        if known is not None and known["type"] != "item_reference":
            self._item(place, known, asked=asked, last=last)
        elif self._strict:
            raise unsupported(place, f"{place}: there is no item with the id {str(name)[:80]!r} on this server")
        else:
            self._warnings.add(f"{place} is left out: there is no item with the id {str(name)[:80]!r} on this server")

    def _unknown(self, place: str, kind: str, item: Mapping[str, Any], *, last: bool) -> None:
        shown = repr(kind)[:80]
        if self._strict:
            raise unsupported(place, f"{place}: items of type {shown} are not supported by this server")
        text = self._reader.text(place, item.get("content") or item.get("text") or item.get("summary"))
        if text and last:  # the last item begins the answer only if the client says so
            self._add(place, {"role": "user", "content": text})
        elif text:
            self._add_answer(place, "content", text)
        else:
            self._warnings.add(f"{place}: items of type {shown} cannot be read here and are left out")

    def _add_answer(self, place: str, field: str, text: str) -> None:
        if not text and self._answer is None and field == "reasoning_content":
            return
        answer = self._continued(place)
        follows_calls = "tool_calls" in answer
        if follows_calls or (field == "reasoning_content" and answer["content"]):
            self._answer = None
            answer = self._continued(place)
        answer[field] = "\n\n".join(filter(None, (answer.get(field), text)))

    def _continued(self, place: str) -> dict[str, Any]:
        if self._answer is None:
            answer: dict[str, Any] = {"role": "assistant", "content": ""}
            self._add(place, answer)
            self._answer = answer
        return self._answer

    def _add(self, place: str, message: dict[str, Any]) -> None:
        self._answer = None
        self.history.add(place, message)


def as_item(item: Any) -> Mapping[str, Any] | None:
    """An item with a type; a text or a part of a message is the user's message. None for anything else."""
    if isinstance(item, str):
        return {"type": "message", "role": "user", "content": item}
    kind = _kind_of(item) if isinstance(item, Mapping) else None
    if kind is None:
        return None
    if kind in _PARTS:
        role = "assistant" if kind in ("output_text", "refusal") else "user"
        return {"type": "message", "role": role, "content": [item]}
    return {**item, "type": kind}


def _is_described(item: Any) -> bool:
    """Whether the API has items of this shape: without a type, those that have a role and references."""
    if not isinstance(item, Mapping):
        return False
    kind = item.get("type")
    return kind not in _PARTS if isinstance(kind, str) else kind is None and ("role" in item or set(item) == {"id"})


def _kind_of(item: Mapping[str, Any]) -> str | None:
    """The type of an item, or what one without a type must be."""
    kind = item.get("type")
    if isinstance(kind, str):
        return "message" if "role" in item and _is_unknown(kind) else kind
    if "role" in item:
        return "message"
    if "output" in item:
        return "function_call_output"
    if "arguments" in item:
        return "function_call"
    if "content" in item or isinstance(item.get("text"), str):
        return "message" if "content" in item else "input_text"
    return "item_reference" if "id" in item else None


def _is_unknown(kind: str) -> bool:
    known = ("message", "reasoning", "function_call", "custom_tool_call", "item_reference", "mcp_approval_response")
    return not (kind in (*known, *_OTHER_CALLS, *_SILENT) or kind.endswith("_output"))


def _is_told(item: Mapping[str, Any]) -> bool:
    """Whether an item becomes a message, or a part of one, with a role from the client."""
    return item["type"] not in _SILENT and not _is_unknown(item["type"])


def _is_answer(item: Any) -> bool:
    """Whether an item is part of an answer."""
    if not isinstance(item, Mapping):
        return False
    kind = item["type"]
    return item.get("role") == "assistant" or (kind != "message" and not kind.endswith("_reference"))


def _is_question(item: Any) -> bool:
    return isinstance(item, Mapping) and item["type"] == "message" and item.get("role") not in _NOT_ASKING


def _invalid(place: str, what: str) -> ApiError:
    return ApiError(400, f"{place}: {what}", param=place, code="invalid_value")
