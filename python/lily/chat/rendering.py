"""Renders one conversation: messages to the prompt of a turn, and generated ids to their place in the text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from lily.chat.answer_beginning import AnswerBeginning
from lily.chat.argument_values import ToolSchemas
from lily.chat.constraints import CompiledGrammar, GrammarCompiler
from lily.chat.control import grammar_field, turn_grammar
from lily.chat.events import Done, Timings, Usage
from lily.chat.grammars import Grammar
from lily.chat.options import TurnOptions, resolve_sampling
from lily.chat.prompt_borders import PromptBorders
from lily.chat.prompt_encoder import PromptEncoder
from lily.chat.roles import LaterSystem, normalize_messages
from lily.chat.tool_choice import as_tool_choice
from lily.chat.turn import Turn
from lily.chat.turn_prompt import PrefillCancelledError, TurnPrompt
from lily.errors import CancelledError, ContextOverflowError, InvalidArgumentError

if TYPE_CHECKING:
    from lily.model import Model

__all__ = ["ChatSupport", "Rendering"]


class ChatSupport:
    """What the chats of one model share: the ids of generated turns, borders of prompts, and compiled grammars."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.encoder = PromptEncoder(model.tokenizer, model.text_guard)
        self.turn_ends = [model.tokenizer.decode([token]) + "\n" for token in model.stop_tokens]
        self.borders = PromptBorders(model.text_guard, model.chat_template, self.turn_ends)

    @cached_property
    def grammars(self) -> GrammarCompiler:
        """The compiler of grammars."""
        return GrammarCompiler(self._model.tokenizer, self._model.stop_tokens)


class Rendering:
    """One chat's template variables and tools, and the rendering of its messages with them."""

    def __init__(
        self,
        model: Model,
        tools: Sequence[Mapping[str, Any]],
        template_options: Mapping[str, Any],
        later_system: LaterSystem,
        is_cancelled: Callable[[], bool],
    ) -> None:
        self.tools = tools
        self._model = model
        self.template_options = template_options
        self._later_system = later_system
        self._is_cancelled = is_cancelled

    def prompt(self, messages: list[dict[str, Any]], options: TurnOptions, most: int | None) -> TurnPrompt:
        """What is needed to answer; raises for everything that can be wrong with the request."""
        model = self._model
        schemas = ToolSchemas(self.tools)
        choice = as_tool_choice(options.tool_choice, schemas.names)
        compiled = self._compiled(turn_grammar(model.tokenizer, options, schemas, choice), options)
        if most is not None and len(messages) > most:  # each takes several tokens
            raise ContextOverflowError(
                f"the conversation has {len(messages)} messages and the maximum context is {most} tokens"
            )
        begun = None
        support = model.chat_support
        render = partial(self.render, generation=False)
        try:
            normal = normalize_messages(messages, later_system=self._later_system)
            if normal[-1]["role"] == "assistant":
                begun = AnswerBeginning.of(normal.pop())
                text = begun.prompt(normal, render, support.turn_ends)
            else:
                text = self.render(normal, generation=True)
        except RecursionError as error:
            raise InvalidArgumentError("messages: a value in them is nested too deeply") from error
        borders = support.borders.find(normal, text, tools=self.tools, options=self.template_options, render=render)
        encoded = support.encoder.encode(text, borders, most)
        sampling = resolve_sampling(model, options.sampling)
        return TurnPrompt(normal, text, encoded, options, sampling, schemas, choice, compiled, begun)

    def remember(self, prompt: TurnPrompt, turn: Turn) -> None:
        """Keep the ids of a complete turn."""
        if not turn.is_whole:
            return
        answer = normalize_messages(prompt.answered(prompt.normal, turn.message), later_system=self._later_system)
        conversation = self.render(answer, generation=False)
        tokenizer = self._model.tokenizer
        ends = [tokenizer.decode([token]) for token in self._model.stop_tokens]
        at = max(conversation.rfind(end) for end in ends) if ends else -1
        if at >= len(prompt.text):
            self._model.chat_support.encoder.remember(prompt.text, conversation, conversation[at:], turn.tokens)

    def _compiled(self, grammar: Grammar | None, options: TurnOptions) -> CompiledGrammar | None:
        if grammar is None:
            return None
        try:
            return self._model.chat_support.grammars.compile(grammar, self._is_cancelled)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{grammar_field(options)}: {error}") from error
        except CancelledError:
            raise PrefillCancelledError(Done("cancelled", Usage(0), Timings())) from None

    def render(self, messages: Sequence[Mapping[str, Any]], *, generation: bool) -> str:
        """The guarded text of messages in their normal form; `generation` opens the answer."""
        template = self._model.chat_template
        guard = self._model.chat_support.encoder.guard
        return guard.render(template, messages, self.tools, add_generation_prompt=generation, **self.template_options)
