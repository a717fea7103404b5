"""Renders chat messages to prompt text with the checkpoint's own Jinja template, in a sandbox."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from lily.checkpoint.json_file import read_optional_json_object
from lily.checkpoint.read_file import TEMPLATE_LIMIT, TOKENIZER_CONFIG_LIMIT, exists, read_text
from lily.checks.arguments import as_items, as_path, check_text
from lily.checks.quoting import quoted, quoted_names, quoted_path, quoted_text
from lily.errors import InvalidArgumentError, TemplateError
from lily.text.messages import prepare_messages, whole_characters
from lily.text.template_budget import OUTPUT_LIMIT, rendering_budget
from lily.text.template_environment import TemplateRefusal, bounded_range, make_environment
from lily.text.tokenizer_config import TokenizerConfig, named_templates, read_tokenizer_config

__all__ = ["ChatTemplate", "checked_variables"]

# Names that have another meaning in a template, or in the functions that call it.
_RESERVED = frozenset(
    ["self", "template", "messages", "tools", "add_generation_prompt", "range", *make_environment().globals]
)


class ChatTemplate:
    """A compiled chat template; immutable and safe to use from any thread."""

    def __init__(
        self, source: str, *, special_tokens: Mapping[str, str] | None = None, origin: str = "chat template"
    ) -> None:
        """Compile a template.

        Parameters
        ----------
        source
            The Jinja text.
        special_tokens
            Texts that the template sees as variables, such as ``bos_token`` and ``eos_token``.
        origin
            Names the template in errors.

        Raises
        ------
        TemplateError
            The text is not a valid template.
        """
        check_text(f"{quoted(origin)}: the source of a chat template", source, TemplateError)
        if not isinstance(special_tokens, (Mapping, type(None))):
            raise TemplateError(f"special_tokens must be a mapping, not a {type(special_tokens).__name__}")
        if len(source) > TEMPLATE_LIMIT:
            raise TemplateError(
                f"{quoted_path(origin)}: {len(source)} characters exceed the limit for a template ({TEMPLATE_LIMIT})"
            )
        self._source = source
        self._origin = origin
        self._special_tokens = dict(special_tokens or {})
        try:
            self._template = make_environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(f"{quoted_path(origin)}, line {error.lineno}: {quoted_text(error.message)}") from error
        except Exception as error:  # deep nesting and constant folding fail in many ways
            raise TemplateError(
                f"{quoted_path(origin)}: cannot be compiled ({type(error).__name__}: {quoted_text(error)})"
            ) from error

    @classmethod
    def from_directory(cls, directory: Path | str, name: str = "default") -> ChatTemplate:
        """Find and compile a checkpoint directory's chat template.

        ``chat_template.jinja`` (for the name ``"default"``) or ``additional_chat_templates/NAME.jinja`` take precedence
        over ``chat_template`` in tokenizer_config.json (one template or several named ones), and that over
        ``chat_template.json``.

        Raises
        ------
        TemplateError
            No template of that name, or it is damaged.
        TokenizerError
            tokenizer_config.json is damaged.
        """
        directory = as_path("directory", directory, TemplateError)
        check_text("name", name, TemplateError)
        config = read_tokenizer_config(directory)
        parts = ("chat_template.jinja",) if name == "default" else ("additional_chat_templates", f"{name}.jinja")
        path = directory.joinpath(*parts)
        if Path(name).name == name and exists(path):
            source = read_text(path, TemplateError, limit=TEMPLATE_LIMIT)
            return cls(source, special_tokens=config.special_tokens, origin=str(path))
        return cls._from_config(directory, config, name)

    @classmethod
    def _from_config(cls, directory: Path, config: TokenizerConfig, name: str) -> ChatTemplate:
        path, templates = directory / "tokenizer_config.json", config.chat_templates
        if not templates:
            path = directory / "chat_template.json"
            fields = read_optional_json_object(path, TemplateError, limit=TOKENIZER_CONFIG_LIMIT) or {}
            templates = named_templates(path, fields.get("chat_template"), TemplateError)
        if not templates:
            raise TemplateError(
                f"{quoted_path(directory)}: no chat template, neither chat_template.jinja nor chat_template in "
                "tokenizer_config.json or chat_template.json; add one of them, or use raw prompts"
            )
        if name not in templates:
            raise TemplateError(
                f"{quoted_path(directory)}: no chat template named {quoted_text(repr(name))}; there are "
                f"{quoted_names(sorted(templates))}"
            )
        origin = f"{path}, chat_template {name!r}"
        return cls(templates[name], special_tokens=config.special_tokens, origin=origin)

    @property
    def source(self) -> str:
        """The Jinja text."""
        return self._source

    def render(
        self,
        messages: Iterable[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **template_kwargs: Any,
    ) -> str:
        """Return the prompt text of a conversation; lone surrogates in it become U+FFFD.

        The text of special tokens inside message contents is not escaped: if the result is encoded with
        ``parse_special=True``, as usual, such text acts as the token.

        Parameters
        ----------
        messages
            Mappings with ``role``, ``content`` and other fields that the template knows (``reasoning_content``,
            ``tool_calls``). `prepare_messages` is applied to them first.
        tools
            Tool definitions in JSON-schema form.
        add_generation_prompt
            End with the header of the assistant's next turn.
        template_kwargs
            Further template variables, such as ``enable_thinking`` or ``preserve_thinking``.

        Raises
        ------
        TemplateError
            The template refuses the messages, fails, or exceeds its bounds.
        """
        kind = f"a {type(tools).__name__}"
        given = [] if tools is None else as_items("tools", tools, "a list of mappings", TemplateError, kind)
        variables = {
            **self._special_tokens,
            "range": bounded_range(),
            **template_kwargs,
            "messages": prepare_messages(messages),
            "tools": given or None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            with rendering_budget():
                return self._generate(variables)
        except TemplateError:
            raise
        except TemplateRefusal as error:
            raise TemplateError(f"the chat template refuses the messages: {quoted_text(error)}") from error
        except Exception as error:  # a template can fail in every way that Python code can
            raise TemplateError(
                f"the chat template: rendering failed ({type(error).__name__}: {quoted_text(error)})"
            ) from error

    def _generate(self, variables: dict[str, Any]) -> str:
        pieces: list[str] = []
        length = 0
        for piece in self._template.generate(variables):
            length += len(piece)
            if length > OUTPUT_LIMIT:
                raise TemplateError(f"the rendered conversation exceeds {OUTPUT_LIMIT} characters")
            pieces.append(piece)
        return whole_characters("".join(pieces))

    def __repr__(self) -> str:
        return f"ChatTemplate({self._origin!r})"


def checked_variables(variables: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a template's further variables.

    Raises
    ------
    InvalidArgumentError
        A name is invalid, or has another meaning in templates.
    """
    if not isinstance(variables, Mapping):
        raise InvalidArgumentError(f"template_options must be a mapping, not a {type(variables).__name__}")
    for name in variables:
        if not isinstance(name, str) or not name.isidentifier() or name in _RESERVED:
            raise InvalidArgumentError(f"template_options: {str(name)[:80]!r} cannot be set")
    return dict(variables)
