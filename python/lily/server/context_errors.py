"""Prompts that do not fit, in the words by which clients of each API know that: some then sum up the conversation."""

from __future__ import annotations

import re

from lily.server.errors import ApiError

__all__ = ["too_long"]

_CHARACTERS = 4  # of a token, about
_COUNTED = re.compile(r"has (\d+) (tokens|characters|messages)")
_MAXIMUM = re.compile(r"(?:maximum context is|more than) (\d+)")


def too_long(text: str, param: str = "messages") -> ApiError:
    """The error for a prompt of which the library says that it does not fit.

    A prompt that is far too long is refused before all of it is encoded; its tokens are then estimated.
    """
    counted, maximum = _COUNTED.search(text), _MAXIMUM.search(text)
    if counted is None or maximum is None:
        return _error(param, text, f"prompt is too long: {text}")
    most = int(maximum[1])
    tokens = int(counted[1]) // (_CHARACTERS if counted[2] == "characters" else 1)
    tokens = max(tokens, most + 1)
    return _error(
        param,
        f"This model's maximum context length is {most} tokens. However, your messages resulted in {tokens} tokens. "
        "Please reduce the length of the messages.",
        f"prompt is too long: {tokens} tokens > {most} maximum",
    )


def _error(param: str, openai: str, anthropic: str) -> ApiError:
    return ApiError(400, openai, param=param, code="context_length_exceeded", anthropic_message=anthropic)
