"""What a turn needs besides a session: the prompt, checked options, tools and grammar."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lily.chat.answer_beginning import AnswerBeginning
from lily.chat.argument_values import ToolSchemas
from lily.chat.constraints import CompiledGrammar
from lily.chat.events import Done
from lily.chat.options import TurnOptions
from lily.chat.prompt_encoder import EncodedPrompt
from lily.chat.tool_choice import ToolChoice
from lily.sampling import Sampling

__all__ = ["SEEDS", "PrefillCancelledError", "TurnPrompt", "reseeded"]

SEEDS = 1 << 64


@dataclass(frozen=True)
class TurnPrompt:
    """A conversation that is ready to be answered; `text` is guarded, see `lily.text.TextGuard`.

    `normal` is what comes before the answer, `begun` what the answer begins with.
    """

    normal: list[dict[str, Any]]
    text: str
    encoded: EncodedPrompt
    options: TurnOptions
    sampling: Sampling
    schemas: ToolSchemas
    choice: ToolChoice
    grammar: CompiledGrammar | None
    begun: AnswerBeginning | None = None

    def answered(self, messages: Sequence[dict[str, Any]], answer: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The conversation with the answer that was generated, joined to its beginning."""
        if self.begun is None:
            return [*messages, dict(answer)]
        before = messages[:-1] if messages[-1].get("role") == "assistant" else messages
        return [*before, self.begun.joined(answer)]


class PrefillCancelledError(Exception):
    """The turn was cancelled before it began; `done` says so."""

    def __init__(self, done: Done) -> None:
        super().__init__()
        self.done = done


def reseeded(sampling: Sampling, index: int) -> Sampling:
    """The sampling of one of several answers."""
    return sampling if sampling.seed is None else replace(sampling, seed=(sampling.seed + index) % SEEDS)
