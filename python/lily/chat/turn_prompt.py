"""What a turn needs besides a session: the prompt, checked options, tools and grammar."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lily.chat.answer_beginning import AnswerBeginning
from lily.chat.argument_values import ToolSchemas
from lily.chat.constraints import CompiledGrammar
from lily.chat.control import TurnControl, grammar_field
from lily.chat.events import Done
from lily.chat.options import TurnOptions
from lily.chat.output_parser import OutputParser, thinking_is_open
from lily.chat.prompt_encoder import EncodedPrompt
from lily.chat.tool_choice import ToolChoice
from lily.chat.turn import Turn
from lily.sampling import Sampling
from lily.session import Session

__all__ = ["SEEDS", "PrefillCancelledError", "TurnPrompt", "reseeded"]

SEEDS = 1 << 64
_FREE_CALL = "the call at the beginning of the answer does not match its tool's schema, which is not enforced"


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

    def start(self, session: Session, sampling: Sampling, is_cancelled: Callable[[], bool]) -> Turn:
        """A turn from a session that holds the self."""
        model, options, choice, begun = session.model, self.options, self.choice, self.begun
        parser = OutputParser(
            reasoning=thinking_is_open(self.text) if begun is None else begun.is_thinking,
            tools=None if choice.mode == "none" else self.schemas,
            call_deltas=options.call_deltas,
            parallel_calls=options.parallel_tool_calls,
            begun="" if begun is None else begun.text,
        )
        constraint = None if self.grammar is None else self.grammar.start(grammar_field(options))
        warnings: tuple[str, ...] = ()
        if constraint is not None and begun is not None:
            fits = begun.enter(constraint, model.tokenizer)
            if not fits and (parser.state == "call" or parser.call_count):
                constraint, warnings = None, (_FREE_CALL,)  # a second call would follow
        control = TurnControl(
            model.tokenizer,
            options,
            parser,
            constraint=constraint,
            stop_tokens=sorted(model.stop_tokens),
            calls_forbidden=choice.mode == "none" and bool(self.schemas.names),
            warnings=warnings,
        )
        generation = session.generation(
            options.max_tokens, sampling=sampling, logprobs=options.logprobs, mask=control.mask
        )
        return Turn(
            model.tokenizer,
            generation,
            parser,
            control,
            options.stop,
            is_cancelled,
            logprobs=options.logprobs is not None,
        )


class PrefillCancelledError(Exception):
    """The turn was cancelled before it began; `done` says so."""

    def __init__(self, done: Done) -> None:
        super().__init__()
        self.done = done


def reseeded(sampling: Sampling, index: int) -> Sampling:
    """The sampling of one of several answers."""
    return sampling if sampling.seed is None else replace(sampling, seed=(sampling.seed + index) % SEEDS)
