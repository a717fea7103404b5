"""Where later prompts may diverge from a prompt: places worth a snapshot."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lily.errors import TemplateError
from lily.text import ChatTemplate, TextGuard

__all__ = ["PromptBorders"]

_HEADER_LENGTH = 64  # characters, at most
_REMEMBERED_QUESTIONS = 4096
_REMEMBERED_OPENINGS, _LONGEST_KEY = 64, 4096  # characters of the options

Render = Callable[[list[dict[str, Any]]], str]  #: renders messages without the opening of the next answer


class PromptBorders:
    """Finds these places for the prompts of one model; safe to use from any thread.

    This needs no second rendering: the template's opening of an answer is the same for all conversations, and the end
    of the latest question is known from the turn before.
    """

    def __init__(self, guard: TextGuard, template: ChatTemplate, turn_ends: Sequence[str]) -> None:
        self._guard = guard
        self._template = template
        self._turn_ends = turn_ends
        self._questions: OrderedDict[bytes, int] = OrderedDict()  # by the text up to its end: its messages
        self._openings: OrderedDict[str, str] = OrderedDict()
        self._lock = threading.Lock()

    def find(
        self,
        messages: list[dict[str, Any]],
        prompt: str,
        *,
        tools: Sequence[Mapping[str, Any]],
        options: Mapping[str, Any],
        render: Render,
    ) -> list[int]:
        """Characters of the prompt before its borders.

        These are the end of system message and tools, which other conversations share, and the headers of the answers
        to the latest question and to the latest message. After those headers the next question drops thinking.
        """
        count = 1 + max(at for at, message in enumerate(messages) if message["role"] == "user")
        opening = self._opening(options)
        whole = len(prompt) - len(opening) if opening and prompt.endswith(opening) else None
        question: int | None
        latest: int | None
        if count < len(messages):
            question = self._known_question(prompt, count)
            latest = len(render(messages)) if whole is None else whole
        else:
            question = latest = whole
        if question is None:
            question = len(render(messages[:count]))
        self._remember_question(prompt[:question], count)
        borders = [_behind_header(prompt, question)]
        if messages[0]["role"] == "system" or tools:
            ends = (prompt.find(text) + len(text) for text in self._turn_ends if text in prompt)
            borders.append(min(ends, default=0))
        if latest is not None and count < len(messages):
            borders.append(_behind_header(prompt, latest))
        return [border for border in borders if prompt[border : border + 1] == "<"]

    def _opening(self, options: Mapping[str, Any]) -> str:
        """What a template writes before an answer; empty if unknown."""
        try:
            key = repr(sorted(options.items())) if options else ""
        except ValueError:  # an integer of thousands of digits
            key = " " * (_LONGEST_KEY + 1)
        with self._lock:
            known = self._openings.get(key)
        if known is not None:
            return known
        shortest = [{"role": "user", "content": "x"}]
        try:
            closed, opened = (
                self._guard.render(self._template, shortest, add_generation_prompt=generation, **options)
                for generation in (False, True)
            )
        except TemplateError:  # it wants more than one question
            closed, opened = "x", ""
        opening = opened[len(closed) :] if opened.startswith(closed) else ""
        with self._lock:
            if len(key) <= _LONGEST_KEY:
                self._openings[key] = opening
            if len(self._openings) > _REMEMBERED_OPENINGS:
                self._openings.popitem(last=False)
        return opening

    def _known_question(self, prompt: str, count: int) -> int | None:
        """Where the latest question ends, if an earlier prompt of the conversation ended with it."""
        ends: set[int] = set()
        for text in self._turn_ends:
            at = prompt.find(text)
            while at >= 0:
                ends.add(at + len(text))
                at = prompt.find(text, at + len(text))
        digest = hashlib.blake2b(digest_size=16)
        start, found = 0, None
        for end in sorted(ends):
            digest.update(prompt[start:end].encode())
            start = end
            with self._lock:
                if self._questions.get(digest.digest()) == count:
                    found = end
        return found

    def _remember_question(self, text: str, count: int) -> None:
        key = hashlib.blake2b(text.encode(), digest_size=16).digest()
        with self._lock:
            self._questions[key] = count
            self._questions.move_to_end(key)
            if len(self._questions) > _REMEMBERED_QUESTIONS:
                self._questions.popitem(last=False)


def _behind_header(prompt: str, border: int) -> int:
    """The place of the thinking block that follows the assistant's header at a border; without one, the border."""
    block = prompt.find("<think>", border, border + _HEADER_LENGTH)
    return border if block < 0 else block
