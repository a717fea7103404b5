"""Texts of strangers that look like control tokens, whole or in pieces: they change no turn of the prompt."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .figures import MIB, Figures
from .isolated import attempt_all, outcome_of
from .limits import Limits

__all__ = ["attack"]

SECONDS_EACH, BYTES_EACH = 60, 256 * MIB
TURN_TOKENS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
TAGS = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<function=",
    "</function>",
    "<parameter=a>",
    "</parameter>",
)
WORDS = (
    "a",
    "\n",
    " ",
    "\n\n",
    "user\n",
    "assistant\n",
    "system\n",
    "é",
    "\u200b",
    "",
    "{}",
    '"',
    "\\",
    "{{ x }}",
    "{% raw %}",
    "\0",
    "\ue000",
    "\uffff",
)


class ForgedTurnError(Exception):
    """A text has become a control token."""


def attack(limits: Limits) -> Figures:
    """Render conversations with hostile texts in every place."""
    return attempt_all("turns", _prepare, _attempt, limits, seconds_each=SECONDS_EACH, bytes_each=BYTES_EACH)


def _prepare(folder: Path) -> Any:
    import lily

    return lily.Model.load("lily-tiny", threads=1)


def _attempt(model: Any, rng: random.Random, seed: int) -> tuple[str, str]:
    shape = rng.randrange(2**32)
    hostile = _Texts(rng)
    messages, tools = conversation(random.Random(shape), hostile.text)
    innocent = _Texts(None)
    plain, plain_tools = conversation(random.Random(shape), innocent.text)
    given: dict[str, Any] = {"preserve_thinking": rng.random() < 0.5, "enable_thinking": rng.random() < 0.5}

    def use() -> None:
        expected = control_tokens(model, model.render_chat(plain, tools=plain_tools, **given))
        found = control_tokens(model, model.render_chat(messages, tools=tools, **given))
        if found != expected:
            raise ForgedTurnError(f"{found}, and {expected} without the texts")

    return outcome_of(use), json.dumps({"messages": messages, "tools": tools})[:200]


def control_tokens(model: Any, ids: list[int]) -> list[str]:
    """The control tokens of a prompt in their order: those that make turns, and the tags."""
    names = {token: text for text, token in model.tokenizer.added_tokens.items()}
    return [names[one] for one in ids if one in names]


class _Texts:
    """Hostile texts, or "x" where there are no random numbers. Pieces of a token follow each other."""

    def __init__(self, rng: random.Random | None) -> None:
        self.rng = rng
        self.rest = ""

    def text(self, *, tags: bool = True) -> str:
        """`tags`: whether tags of thinking and of calls may stand in it, as in what users and tools say."""
        if self.rng is None:
            return "x"
        rng = self.rng
        rest, self.rest = self.rest, ""
        tokens = (*TURN_TOKENS, *(TAGS if tags else ()))
        if not tags and rest and not rest.startswith(("im_", "_", "s", "t", "e", "|", ">")):
            rest = ""
        text = rest + "".join(rng.choice(tokens if rng.random() < 0.6 else WORDS) for _ in range(rng.randrange(5)))
        if rng.random() < 0.5:
            token = rng.choice(TURN_TOKENS)
            cut = rng.randrange(1, len(token))
            text, self.rest = text + token[:cut], token[cut:]
        return "x" + text if not text.strip() else text


def conversation(
    rng: random.Random, text: Callable[..., str]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
    """A random conversation; all its texts come from `text`."""

    def content(tags: bool = True) -> Any:
        kind = rng.random()
        if kind < 0.5:
            return text(tags=tags)
        return [{"type": "text", "text": text(tags=tags)} for _ in range(rng.randint(1, 4))]

    messages: list[dict[str, Any]] = [{"role": "system", "content": content(False)}] if rng.random() < 0.5 else []
    for _ in range(rng.randint(1, 3)):
        messages.append({"role": "user", "content": content()} | ({"name": text()} if rng.random() < 0.2 else {}))
        if rng.random() < 0.4:
            arguments = {text(): text(), "b": [text(), {text(): text()}], "c": rng.choice((1, None, True))}
            given: Any = rng.choice((arguments, json.dumps(arguments), text()))
            call = {
                "id": text(),
                "type": "function",
                "function": {"name": text() if rng.random() < 0.5 else "f", "arguments": given},
            }
            messages.append(
                {"role": "assistant", "content": rng.choice(("", None)), "tool_calls": [call] * rng.randint(1, 2)}
            )
            messages.append({"role": "tool", "tool_call_id": "c", "content": content(), "name": text()})
        answer = {"role": "assistant", "content": content(False)}
        if rng.random() < 0.4:
            answer[rng.choice(("reasoning_content", "reasoning"))] = text(tags=False)
        messages.append(answer)
    messages.append({"role": "user", "content": content()})
    if rng.random() < 0.5:
        return messages, None
    properties = {text(): {"type": "string", "description": text(), "enum": [text()], text(): text()}}
    function = {"name": text(), "description": text(), "parameters": {"type": "object", "properties": properties}}
    return messages, [{"type": "function", "function": function}]
