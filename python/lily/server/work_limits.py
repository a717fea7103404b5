"""Limits checked before a conversation is read, and the memory that encoding it takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lily.errors import ContextOverflowError, InvalidArgumentError
from lily.server.context_errors import most_tokens, too_long

if TYPE_CHECKING:
    from lily.model import Model
    from lily.server.steps import Steps
    from lily.text import Tokenizer

__all__ = ["characters_of", "check_counts", "check_tools", "encoding_bytes", "may_be_too_long", "take_memory"]

_MOST_TOOLS = 1024
_MOST_MESSAGES = 1 << 14
_MOST_PARTS = 1 << 15  # of all messages
_LISTS = ("content", "tool_calls", "tools", "output", "summary", "reasoning_details", "thinking_blocks")
_FREE = 1 << 16  # bytes of a part too small to count
_BYTES = 4  # of a token, about
_LONGEST_CHARACTER = 4  # bytes
_PER_BYTE = 160  # bytes of memory for a byte of UTF-8 that is encoded at once


def check_counts(model: Model, messages: Sequence[Any], tools: Any = None) -> None:
    """Raise for conversations with too many messages, parts or tools, before anything of them is read.

    Raises
    ------
    ApiError
        There are more messages than the context has tokens, or more than a conversation may have.
    InvalidArgumentError
        There are too many parts or tools.
    """
    if len(messages) > min(model.max_context, _MOST_MESSAGES):
        raise too_long(most_tokens(messages), model.max_context)
    check_tools(tools)
    parts = sum(
        len(one[name])
        for one in messages
        if isinstance(one, Mapping)
        for name in _LISTS
        if isinstance(one.get(name), list)
    )
    if parts > _MOST_PARTS:
        raise InvalidArgumentError(f"messages: they have {parts} parts; at most {_MOST_PARTS} are allowed")


def check_tools(tools: Any) -> None:
    """Raise InvalidArgumentError if there are too many tools."""
    if isinstance(tools, Sequence) and len(tools) > _MOST_TOOLS:
        raise InvalidArgumentError(f"tools: there are {len(tools)} of them; at most {_MOST_TOOLS} are allowed")


def characters_of(value: Any) -> int:
    """Characters of all texts in a JSON value."""
    return sum(map(len, _texts(value)))


def may_be_too_long(model: Model, values: Sequence[Any]) -> bool:
    """Whether texts are so long that their tokens are worth counting first."""
    most = _BYTES * model.max_context
    if _LONGEST_CHARACTER * characters_of(values) <= most:
        return False
    return sum(len(text.encode("utf-8", "replace")) for text in _texts(values)) > most


def take_memory(model: Model, values: Sequence[Any], steps: Steps, most: int | None = None) -> None:
    """Charge the request with the memory to encode texts or messages, one at a time.

    Raises
    ------
    ContextOverflowError
        The beginning of a text alone has more than `most` tokens (None: the context).
    ApiError
        There is not enough memory.
    """
    tokenizer = model.tokenizer
    most = model.max_context if most is None else most
    size = 0
    for value in values:
        steps.check()
        size = max(size, sum(map(tokenizer.longest_part, _texts(value))))
    if size > max(_BYTES * most, _FREE):
        for value in values:
            for text in _texts(value):
                _refuse_by_beginning(tokenizer, text, steps, most)
    steps.take(_needed(size))


def encoding_bytes(tokenizer: Tokenizer, text: str) -> int:
    """About how many bytes the tokenizer needs to encode a text, beyond the few that it always needs."""
    return _needed(tokenizer.longest_part(text))


def _needed(longest_part: int) -> int:
    return _PER_BYTE * max(0, longest_part - _FREE)


def _refuse_by_beginning(tokenizer: Tokenizer, text: str, steps: Steps, most: int) -> None:
    """Raise ContextOverflowError if a text that would fit at the usual token length has far more tokens."""
    size = len(text.encode("utf-8", "replace"))
    if size <= _BYTES * most:
        return
    beginning = text[: len(text) * _BYTES * most // size]
    limit = most + most // 16 + 64  # its last tokens may differ from those of the text
    with steps.taken(encoding_bytes(tokenizer, beginning)):
        if tokenizer.count(beginning, limit, parse_special=False) > limit:
            raise ContextOverflowError(
                f"the prompt has {len(text)} characters, more than {most} tokens, the maximum context"
            )


def _texts(value: Any) -> list[str]:
    texts: list[str] = []
    pending = [value]
    while pending:
        one = pending.pop()
        if isinstance(one, str):
            texts.append(one)
        elif isinstance(one, Mapping):
            texts += one
            pending.extend(one.values())
        elif isinstance(one, (list, tuple)):
            pending.extend(one)
    return texts
