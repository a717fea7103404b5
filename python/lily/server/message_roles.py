"""Maps the roles that clients give to messages to the library's. No history is refused for its roles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lily.server.errors import ApiError
from lily.server.request_warnings import Warnings

__all__ = ["known_messages", "message_list"]

_NAMES = {
    "system": "system platform root instructions",
    "developer": "developer",
    "user": "user human",
    "assistant": "assistant model ai bot chatbot gpt",
    "tool": "tool function ipython observation environment tool_response tool_result tool_results function_response",
}
_BY_NAME = {name: role for role, names in _NAMES.items() for name in names.split()}


def message_list(given: Any, *, strict: bool) -> list[Any] | None:
    """The messages of a request, which may also be a single message or the user's text; None for anything else."""
    if isinstance(given, (str, Mapping)) and given and not strict:
        return [given]
    return given if isinstance(given, list) and given else None


def known_messages(
    places: Sequence[str], messages: Sequence[Any], warnings: Warnings, *, strict: bool
) -> list[tuple[str, Mapping[str, Any]]]:
    """The messages with their places, each with one of the library's roles.

    A text is the user's message. An unknown role counts as the user's, and entries that are not messages are left out,
    both with a warning; with `strict`, both raise ApiError.
    """
    found = []
    for place, message in zip(places, messages, strict=True):
        known = _known(place, message, warnings, strict)
        if known is not None:
            found.append((place, known))
    return found


def _known(place: str, message: Any, warnings: Warnings, strict: bool) -> Mapping[str, Any] | None:
    if isinstance(message, str) and not strict:
        return {"role": "user", "content": message}
    if not isinstance(message, Mapping):
        if strict:
            raise ApiError(400, f"{place} must be an object", param=place, code="invalid_value")
        warnings.add(f"{place} is left out, because it is not a message")
        return None
    given = message.get("role")
    role = _BY_NAME.get(given.strip().lower()) if isinstance(given, str) else None
    if role is None:
        shown = repr(given)[:80]
        if strict:
            known = "system, developer, user, assistant and tool"
            raise ApiError(400, f"{place} has the role {shown}; roles are {known}", param=place, code="invalid_value")
        role = _likely_role(message)
        warnings.add(f"{place} has the role {shown}, which is treated as {role}")
    changed = {} if role == given else {"role": role}
    changed |= _content_elsewhere(message)
    return {**message, **changed} if changed else message


def _content_elsewhere(message: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a message that some APIs keep in other fields: parts, a text, images beside the text."""
    content = message.get("content")
    if content is None:
        content = next((message[name] for name in ("parts", "text") if message.get(name)), None)
    images = message.get("images")
    if isinstance(images, list) and images:
        texts = content if isinstance(content, list) else [content]
        content = [*texts, *({"type": "image"} for _ in images)]
    return {} if content is message.get("content") else {"content": content}


def _likely_role(message: Mapping[str, Any]) -> str:
    if message.get("tool_call_id") is not None:
        return "tool"
    return "assistant" if message.get("tool_calls") or message.get("function_call") else "user"
