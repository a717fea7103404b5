"""Keeps the texts that callers put into a conversation from acting as control tokens.

A chat template mixes its own tokens, such as ``<|im_end|>``, with the texts of messages. If such a text holds the
characters ``<|im_end|>``, it must not end the turn. So these characters are marked before rendering, and what is marked
is encoded as plain text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lily.errors import TemplateError
from lily.text.chat_template import ChatTemplate
from lily.text.messages import prepare_messages
from lily.text.tokenizer import Tokenizer

__all__ = ["TextGuard"]

# Code points that Unicode reserves for use inside programs; ESCAPE stands for itself where ITSELF follows it.
_ESCAPE, _MARK, _ITSELF = "\ufdd0", "\ufdd1", "\ufdd2"
_GUARDED = _ESCAPE + _MARK
# The model writes these, and templates look for them; only users and tools have no business with them.
_TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
_OUTSIDE_ROLES = ("user", "tool")


class TextGuard:
    """Renders guarded prompts and encodes them, for one tokenizer; safe to use from any thread."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        tokens = sorted(tokenizer.added_tokens, key=len, reverse=True)
        self._all = _any_of(tokens)
        self._control = _any_of([token for token in tokens if token not in _TAGS])

    def render(
        self,
        template: ChatTemplate,
        messages: Iterable[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """The prompt of a conversation, for `encode`; arguments and errors as for `ChatTemplate.render`.

        In texts of users and tools no token acts as such; elsewhere ``<think>`` and the tags of tool calls do.
        """
        given = prepare_messages(messages)  # arguments of calls may hide characters in JSON
        plain: str | None = None
        for outside in (self._all, self._control):
            guarded = [_marked(message, self._pattern(message, outside)) for message in given]
            guarded_tools = _marked(tools, self._control) if isinstance(tools, (list, tuple)) else tools
            if guarded == given and guarded_tools == tools:
                return template.render(given, tools, **variables)
            if plain is None:
                plain = template.render(given, tools, **variables)
            text = template.render(guarded, guarded_tools, **variables)
            if self.plain(text) == plain:
                return text
        raise TemplateError("the chat template acts on control tokens in messages, which is not safe; remove them")

    def encode(self, text: str) -> list[int]:
        """The ids of a guarded prompt; those of the tokenizer where nothing is marked."""
        if _ESCAPE not in text:
            return self._tokenizer.encode(text)
        ids: list[int] = []
        unmarked = start = 0  # beginnings of the text that is not encoded yet, and of the current piece
        for end, behind in [*(match.span() for match in self._all.finditer(text)), (len(text), len(text))]:
            piece = text[start:end]
            if _ESCAPE in piece:
                ids += self._tokenizer.encode(text[unmarked:start])
                ids += self._tokenizer.encode(self.plain(piece), parse_special=False)
                unmarked = end
            start = behind
        return ids + self._tokenizer.encode(text[unmarked:])

    def plain(self, text: str) -> str:
        """A guarded text without its marks."""
        return text.replace(_GUARDED, "").replace(_ESCAPE + _ITSELF, _ESCAPE)

    def _pattern(self, message: Any, outside: re.Pattern[str]) -> re.Pattern[str]:
        role = message.get("role") if isinstance(message, Mapping) else None
        return outside if role in _OUTSIDE_ROLES else self._control


def _any_of(tokens: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, tokens)) if tokens else r"(?!)")


def _marked(value: Any, tokens: re.Pattern[str]) -> Any:
    """A copy in which no text holds one of the tokens."""
    if isinstance(value, str):
        if _ESCAPE in value:
            value = value.replace(_ESCAPE, _ESCAPE + _ITSELF)
        return tokens.sub(lambda match: match[0][:1] + _GUARDED + match[0][1:], value)
    if isinstance(value, Mapping):
        return {_marked(key, tokens): _marked(item, tokens) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_marked(item, tokens) for item in value]
    return value
