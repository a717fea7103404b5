"""The text side of a model: its tokenizer, its chat template, and conversations with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from lily.checkpoint import Checkpoint
from lily.checks.arguments import as_flag
from lily.sampling import Sampling
from lily.text import (
    ChatTemplate,
    GenerationDefaults,
    TextGuard,
    Tokenizer,
    answerable,
    prepare_messages,
    read_generation_defaults,
    read_stop_tokens,
)

if TYPE_CHECKING:
    from lily.chat import Chat
    from lily.chat.rendering import ChatSupport
    from lily.chat.roles import LaterSystem
    from lily.model import Model

__all__ = ["ModelText"]


class ModelText:
    """The parts of `lily.Model` from the checkpoint's text files; each file is read on first use."""

    checkpoint: Checkpoint

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The checkpoint's tokenizer; if there is none, TokenizerError says what is missing."""
        return Tokenizer.from_directory(self.checkpoint.directory)

    @cached_property
    def chat_template(self) -> ChatTemplate:
        """The checkpoint's chat template; if there is none, TemplateError says what is missing."""
        return ChatTemplate.from_directory(self.checkpoint.directory)

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **template_kwargs: Any,
    ) -> list[int]:
        """Token ids of a conversation, as the checkpoint's template writes it.

        Control tokens written in messages and tools, such as ``<|im_end|>``, are plain text, even if several texts
        together form them. Histories are never refused for their content: call arguments that are not a JSON object
        become the text of one parameter, lone surrogates become U+FFFD, tool results without content become empty, and
        empty answers at the end are left out if the model is to answer.

        Parameters
        ----------
        messages : sequence of mappings
            OpenAI-style messages: role, content, tool_calls, ...
        tools : sequence of mappings, optional
            Function definitions.
        add_generation_prompt : bool
            End with the opening of the assistant's turn.
        **template_kwargs
            Passed to the template, e.g. ``enable_thinking=False``.
        """
        guard, template = self.text_guard, self.chat_template
        prepared = prepare_messages(messages)
        add_generation_prompt = as_flag("add_generation_prompt", add_generation_prompt)
        if add_generation_prompt:
            prepared = answerable(prepared)
        text = guard.render(template, prepared, tools, add_generation_prompt=add_generation_prompt, **template_kwargs)
        return guard.encode(text)

    @cached_property
    def text_guard(self) -> TextGuard:
        """Renders conversations and encodes them so that no text in them acts as a control token."""
        return TextGuard(self.tokenizer)

    @cached_property
    def generation_defaults(self) -> GenerationDefaults:
        """The contents of the checkpoint's generation_config.json."""
        return read_generation_defaults(self.checkpoint.directory)

    @cached_property
    def default_sampling(self) -> Sampling:
        """Sampling as recommended by the checkpoint's generation_config.json."""
        defaults = self.generation_defaults
        if defaults.greedy:
            return Sampling.greedy()
        given = {
            name: value
            for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
            if (value := getattr(defaults, name)) is not None
        }
        return Sampling(**given)

    @cached_property
    def stop_tokens(self) -> frozenset[int]:
        """Ids that end a generation: the union of generation_config, config and tokenizer_config."""
        return read_stop_tokens(
            self.checkpoint.directory, vocab_size=self.checkpoint.config.vocab_size, tokenizer=self._optional_tokenizer
        )

    @property
    def sampled_vocab_size(self) -> int:
        """Ids below this may be sampled: the tokenizer's, or all rows of the head if there is no tokenizer."""
        tokenizer, rows = self._optional_tokenizer, self.checkpoint.config.vocab_size
        return rows if tokenizer is None else min(tokenizer.vocab_size, rows)

    @cached_property
    def _optional_tokenizer(self) -> Tokenizer | None:
        # A directory without tokenizer files works with ids; one with a damaged tokenizer is an error.
        if not (self.checkpoint.directory / "tokenizer.json").exists():
            return None
        return self.tokenizer

    def chat(
        self,
        system: str | None = None,
        *,
        tools: Sequence[Mapping[str, Any] | Callable[..., Any]] | None = None,
        messages: Sequence[Mapping[str, Any]] = (),
        thinking: bool | None = True,
        preserve_thinking: bool = False,
        sampling: Sampling | str = "auto",
        later_system: LaterSystem = "refuse",
        seed: int | None = None,
        template_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Chat:
        """A new conversation; see `lily.chat.Chat`.

        Parameters
        ----------
        system : str, optional
            The system message.
        tools : sequence, optional
            Python functions, and definitions in OpenAI's form.
        messages : sequence of mappings
            The conversation so far.
        thinking : bool, optional
            Whether the model thinks before it answers; None lets the template decide.
        preserve_thinking : bool
            Show the model its thinking of earlier turns.
        sampling : Sampling or str
            "auto" for the checkpoint's generation_config, or "thinking", "coding", "instruct", "reasoning".
        later_system : {"refuse", "convert"}
            What to do with system messages within the conversation.
        seed : int, optional
            Seed of the random draws, 0 to 2**64 - 1; random by default.
        template_options : mapping, optional
            More variables of the chat template.
        **options
            The other fields of `lily.chat.TurnOptions`, as defaults of all turns.

        Raises
        ------
        InvalidArgumentError
            An option or a tool is not valid; the message names it.
        TokenizerError, TemplateError
            The checkpoint has no tokenizer or chat template.
        """
        from lily.chat import Chat, TurnOptions

        return Chat(
            cast("Model", self),
            TurnOptions.of({"sampling": sampling, **options}),
            system=system,
            tools=tools,
            messages=messages,
            thinking=thinking,
            preserve_thinking=preserve_thinking,
            later_system=later_system,
            seed=seed,
            template_options=template_options,
        )

    @cached_property
    def chat_support(self) -> ChatSupport:
        """State shared by all chats of this model."""
        from lily.chat.rendering import ChatSupport

        return ChatSupport(cast("Model", self))
