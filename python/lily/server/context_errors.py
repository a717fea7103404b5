"""Errors for prompts that do not fit, worded as each API's clients expect: some then summarize the conversation."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from lily.server.errors import ApiError

__all__ = ["as_too_long", "is_exact", "most_tokens", "too_long"]

_COUNTED = re.compile(r"has (\d+) (tokens|characters|messages)")
_MAXIMUM = re.compile(r"(?:maximum context is|more than) (\d+)")
_BYTES = 4  # of a character, at most
_OF_TEMPLATE = 4096  # tokens that a template adds to tools
_OF_MESSAGE = 64  # and to a message


def too_long(tokens: int, most: int, param: str = "messages") -> ApiError:
    """The error for a prompt that has more tokens than the context holds.

    Clients read the number to find out how much to leave out. So it is exact or an upper bound, see `most_tokens`.
    """
    tokens = max(tokens, most + 1)
    return _error(
        param,
        f"This model's maximum context length is {most} tokens. However, your messages resulted in {tokens} tokens. "
        "Please reduce the length of the messages.",
        f"prompt is too long: {tokens} tokens > {most} maximum",
    )


def most_tokens(messages: Sequence[Any], tools: Any = None) -> int:
    """An upper bound for the tokens of a conversation's prompt, in the time of one look at its texts.

    No token is less than a byte of a text, and JSON spells what templates write as JSON.
    """
    size = len(json.dumps(messages, ensure_ascii=False).encode("utf-8", "replace"))
    return size + len(json.dumps(tools)) + _OF_MESSAGE * len(messages) + _OF_TEMPLATE


def as_too_long(text: str, param: str = "messages") -> ApiError:
    """The error for a prompt that the library has found too long."""
    counted, maximum = _COUNTED.search(text), _MAXIMUM.search(text)
    if counted is None or maximum is None:
        return _error(param, text, f"prompt is too long: {text}")
    return too_long(int(counted[1]) * (1 if counted[2] == "tokens" else _BYTES), int(maximum[1]), param)


def is_exact(text: str) -> bool:
    """Whether the library's error contains the number of tokens."""
    counted = _COUNTED.search(text)
    return counted is not None and counted[2] == "tokens"


def _error(param: str, openai: str, anthropic: str) -> ApiError:
    return ApiError(400, openai, param=param, code="context_length_exceeded", anthropic_message=anthropic)
