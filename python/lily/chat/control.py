"""Decides which tokens may come next in a turn, and which are inserted: grammars and the thinking limit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lily.chat.argument_values import ToolSchemas
from lily.chat.constraints import GrammarConstraint, Mask, forbid
from lily.chat.grammars import Grammar, answer_grammar, call_grammar, either_grammar
from lily.chat.options import TurnOptions
from lily.chat.tool_choice import ToolChoice
from lily.errors import BackendError
from lily.text import Tokenizer

if TYPE_CHECKING:
    from lily.chat.output_parser import OutputParser

__all__ = ["TurnControl", "grammar_field", "turn_grammar"]


class TurnControl:
    """The masks and the forced tokens of one turn.

    A grammar applies after the end of the thinking. Until then the turn cannot end, nor can a call begin.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        options: TurnOptions,
        parser: OutputParser,
        *,
        constraint: GrammarConstraint | None,
        stop_tokens: Sequence[int],
        calls_forbidden: bool,
        warnings: tuple[str, ...] = (),
    ) -> None:
        self._tokenizer = tokenizer
        self._warnings = warnings
        self._options = options
        self._parser = parser
        self._constraint = constraint
        self._waiting = constraint is not None and parser.in_reasoning
        open_call = tokenizer.token_id("<tool_call>")
        calls = [] if open_call is None else [open_call]
        self._thinking_mask = forbid(tokenizer.vocab_size, [*stop_tokens, *calls]) if self._waiting else None
        self._free_mask = forbid(tokenizer.vocab_size, calls) if calls_forbidden and calls else None
        self._thought = 0  # tokens
        self._limited = options.max_thinking_tokens is not None and tokenizer.token_id("</think>") is not None

    @property
    def warnings(self) -> tuple[str, ...]:
        """Requirements that nothing enforces."""
        dropped = () if self._constraint is None else self._constraint.dropped
        field = grammar_field(self._options)
        return (*self._warnings, *(f"{field}: {keyword} cannot be enforced by a grammar" for keyword in dropped))

    def mask(self) -> Mask | None:
        """The tokens allowed next; None allows all."""
        if self._waiting:
            return self._thinking_mask
        return self._free_mask if self._constraint is None else self._constraint.mask()

    def accept(self, token: int, *, forced: bool = False) -> None:
        """Take a token that is now part of the output, before the parser gets its text."""
        self._thought += self._parser.in_reasoning
        if self._constraint is not None and not self._waiting and not forced:
            self._constraint.accept(token)

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of the thinking block so far, its closing tag included."""
        return self._thought

    def forced(self) -> list[int]:
        """The tokens to insert now, if any; a grammar begins after them."""
        if self._waiting and not self._parser.in_reasoning:
            # The model has closed its thinking: insert what always stands before an answer.
            self._waiting = False
            return self._tokenizer.encode("\n\n")
        limit = self._options.max_thinking_tokens
        if self._limited and limit is not None and self._parser.state == "reasoning" and self._thought >= limit:
            self._waiting = False
            self._limited = False
            words = self._options.thinking_end if self._thought else "\n"
            return [*self._tokenizer.encode(words, parse_special=False), *self._tokenizer.encode("</think>\n\n")]
        return []


def turn_grammar(
    tokenizer: Tokenizer, options: TurnOptions, schemas: ToolSchemas, choice: ToolChoice
) -> Grammar | None:
    """The grammar that a turn must follow, or None.

    Raises
    ------
    InvalidArgumentError
        The response format is not valid.
    BackendError
        A call is forced, but the tokenizer has no call tags.
    """
    answer = answer_grammar(options.response_format)
    if choice.mode == "none" or (choice.mode == "auto" and answer is None):
        return answer
    tags = (tokenizer.token_id("<tool_call>"), tokenizer.token_id("</tool_call>"))
    if tags[0] is None or tags[1] is None:
        raise BackendError("the model's tokenizer has no <tool_call> tags, so no call can be forced")
    calls = call_grammar(
        schemas, choice.names, open_tag=tags[0], close_tag=tags[1], parallel=options.parallel_tool_calls
    )
    return calls if choice.mode == "required" or answer is None else either_grammar(answer, calls)


def grammar_field(options: TurnOptions) -> str:
    """The option that a turn's grammar comes from, for errors."""
    return "tools" if options.response_format is None else "response_format"
