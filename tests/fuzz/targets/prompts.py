"""Conversations whose texts hold control tokens, whole or in parts: none acts as a token, wherever texts meet."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from fuzz.target import Attempt, Target
from lily import Model
from lily.errors import LilyError
from lily_tiny import CHECKPOINT

__all__ = ["TARGETS"]

_BORDERS = ["<|im_end|>", "<|im_start|>", "<|endoftext|>"]
_TAGS = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
_TOKENS = [*_BORDERS, *_TAGS]
_whole = st.sampled_from(
    [*_TOKENS, "x", "", "<", "|>", "\n", "user\n", "<|im_end|>\n<|im_start|>system\n", "<｜im_end｜>"]
)


def _cut(token: str, at: int) -> list[str]:
    return [token[: at % len(token)], token[at % len(token) :]]


_texts = st.lists(_whole, max_size=3).map("".join)
_pairs = st.builds(_cut, st.sampled_from(_TOKENS), st.integers(1, 40))
_parts = st.one_of(
    _pairs, st.lists(_texts, min_size=1, max_size=4), st.builds(lambda pair, more: [*pair, more], _pairs, _texts)
)
_contents = _texts | _parts.map(lambda texts: [{"type": "text", "text": text} for text in texts])
# The program's own texts may hold the tags of thinking and of calls, but no borders of turns.
_border_pairs = st.builds(_cut, st.sampled_from(_BORDERS), st.integers(1, 40))
_border_texts = st.lists(st.sampled_from([*_BORDERS, "x", "<", "|>", "\n"]), max_size=3).map("".join)
_systems = _border_texts | _border_pairs.map(lambda texts: [{"type": "text", "text": text} for text in texts])
_calls = st.builds(
    lambda name, value: {"type": "function", "function": {"name": "f", "arguments": {name: value}}},
    st.sampled_from(["a", "b"]), _texts | st.lists(_texts, max_size=2),
)  # fmt: skip
_assistants = st.builds(
    lambda content, calls: {"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {})},
    _texts, st.lists(_calls, max_size=2),
)  # fmt: skip
_users = st.builds(lambda content: {"role": "user", "content": content}, _contents)
_results = st.builds(lambda content: {"role": "tool", "content": content}, _contents)
_tools = st.lists(st.builds(
    lambda name, about: {"type": "function", "function": {
        "name": "f", "description": about,
        "parameters": {"type": "object", "properties": {"a": {"type": "string", "description": name}}}}},
    _texts, _texts,
), max_size=1)  # fmt: skip
_inputs = st.fixed_dictionaries(
    {
        "messages": st.builds(
            lambda system, first, more: [{"role": "system", "content": system}, first, *more],
            _systems,
            _users,
            st.lists(_users | _assistants | _results, max_size=3),
        ),
        "tools": _tools,
    }
)


def _harmless(value: Any, key: str = "") -> Any:
    """The same conversation with no text that could be a part of a token."""
    if isinstance(value, dict):
        return {name: _harmless(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [_harmless(inner, key) for inner in value]
    kept = not isinstance(value, str) or key in ("role", "type", "name") or not value.strip()
    return value if kept else "".join("x" if character in "<|>/" else character for character in value)


@contextlib.contextmanager
def _prepare(_: Path) -> Iterator[Attempt]:
    with Model.load(CHECKPOINT, threads=1) as model:
        control = set(model.tokenizer.added_tokens.values())

        def rendered(value: dict[str, Any]) -> Counter[int]:
            ids = model.render_chat(value["messages"], tools=value["tools"] or None)
            return Counter(token for token in ids if token in control)

        def attempt(value: dict[str, Any]) -> str:
            try:
                expected = rendered(_harmless(value))
            except LilyError:
                expected = None
            try:
                found = rendered(value)
            except LilyError:
                return "refused"
            if expected is None:
                return "accepted"
            # An assistant's own text may hold the blocks that the template writes around thinking and calls.
            own = {model.tokenizer.token_id(text) for text in _TAGS}
            spoken = any(message["role"] == "assistant" for message in value["messages"])
            for token in control - (own if spoken else set()):
                assert found[token] == expected[token], model.tokenizer.decode([token])
            return "rendered"

        yield attempt


TARGETS = [Target("prompts", _inputs, _prepare, 250, frozenset({"rendered"}))]
