"""Keeps the texts that callers put into a conversation from acting as control tokens.

A chat template mixes its own tokens, such as ``<|im_end|>``, with the texts of messages. If such texts contain the
characters ``<|im_end|>``, alone or joined with their neighbours in the prompt, they must not end the turn. So these
characters are marked before rendering, and marked characters are encoded as plain text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from lily.checks.arguments import as_items, check_text
from lily.checks.whole_numbers import whole_number
from lily.errors import InvalidArgumentError, TemplateError
from lily.text.chat_template import ChatTemplate
from lily.text.known_pieces import KnownPieces
from lily.text.messages import prepare_messages, template_value
from lily.text.text_marks import ESCAPE, Strength, TagUse, TextMarks, escaped, pattern_of, without_marks
from lily.text.tokenizer import Tokenizer

__all__ = ["TextGuard"]

_OUTSIDE_ROLES = ("user", "tool")


class TextGuard:
    """Renders guarded prompts and encodes them, for one tokenizer; safe to use from any thread."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        if not isinstance(tokenizer, Tokenizer):
            raise InvalidArgumentError(f"tokenizer must be a lily.text.Tokenizer, not a {type(tokenizer).__name__}")
        self._tokenizer = tokenizer
        self._ids = dict(tokenizer.added_tokens)
        tokens = sorted(self._ids, key=len, reverse=True)
        self._texts = pattern_of(tokens)
        self._live = pattern_of(tokens, live=True)
        self._marks = TextMarks(tokens)
        self._known = KnownPieces(self._encode_plain)

    def render(
        self,
        template: ChatTemplate,
        messages: Iterable[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """The prompt of a conversation, for `encode`; arguments and errors as for `ChatTemplate.render`.

        In texts of users and tools, in tool definitions, and in the names and arguments of calls, which others may have
        caused, no token acts as such. Elsewhere ``<think>`` and call tags do if a single text contains them whole.
        """
        if not isinstance(template, ChatTemplate):
            raise TemplateError(f"template must be a lily.text.ChatTemplate, not a {type(template).__name__}")
        given = template_value(prepare_messages(messages), "messages")
        given_tools = None if tools is None else _as_list(tools)
        options = {name: template_value(value, name) for name, value in variables.items()}
        plain: str | None = None
        tried: list[Any] = []
        for strength, tags in _LEVELS:
            inside = self._marks.marker(strength, "token")
            outside = self._marks.marker(strength, tags)
            guarded = (
                [_marked(message, inside, outside) for message in given],
                outside(given_tools),
                {name: inside(value) for name, value in options.items()},
            )
            if guarded == (given, given_tools, options):
                return template.render(given, given_tools, **options) if plain is None else plain
            if guarded in tried:
                continue
            tried.append(guarded)
            if plain is None:
                plain = self._rendered_plain(template, (given, given_tools, options))
            text = self._rendered(template, guarded)
            if text is not None and self.plain(text) == plain:
                return self._with_needed_marks(text)
        joined = [_in_one_text(message) for message in given]
        if joined != given:  # a tag formed by an answer's parts together counts as whole
            return self.render(template, joined, tools, **variables)
        raise TemplateError(
            "the chat template reacts to control tokens in messages, which is not safe; remove them from the messages"
        )

    def encode(self, text: str) -> list[int]:
        """The ids of a guarded prompt: its unmarked tokens, and the texts between them."""
        check_text("text", text)
        return self._encode(text, self._known.ids)

    def count(self, text: str, most: int) -> int:
        """How many ids `encode` gives, or some number above `most`; unlike `encode`, remembers nothing of the text."""
        check_text("text", text)
        most = whole_number("most", most, 0, error_type=InvalidArgumentError)
        if not self._tokenizer.matches_added_tokens_exactly:
            return len(self._encode(text, self._encode_plain))
        count = start = 0
        for match in self._live.finditer(text):
            count += self._count_plain(text[start : match.start()], most - count) + 1
            if count > most:
                return count
            start = match.end()
        return count + self._count_plain(text[start:], most - count)

    def plain(self, text: str) -> str:
        """A guarded text without its marks."""
        if not isinstance(text, str):
            raise InvalidArgumentError(f"text must be a str, not {type(text).__name__}")
        return without_marks(text)

    def _encode(self, text: str, encode_plain: Callable[[str], list[int]]) -> list[int]:
        if self._tokenizer.matches_added_tokens_exactly:
            return self._encode_pieces(text, encode_plain)
        if ESCAPE not in text:
            return self._tokenizer.encode(text)
        ids: list[int] = []
        unmarked = start = 0  # start of the text that is not encoded yet, and of the current piece
        for end, behind in [*(match.span() for match in self._live.finditer(text)), (len(text), len(text))]:
            piece = text[start:end]
            if ESCAPE in piece:
                ids += self._tokenizer.encode(text[unmarked:start])
                ids += self._tokenizer.encode(self.plain(piece), parse_special=False)
                unmarked = end
            start = behind
        return ids + self._tokenizer.encode(text[unmarked:])

    def _with_needed_marks(self, text: str) -> str:
        """A guarded text without the marks in pieces between tokens that contain no token's text."""
        pieces = self._live.split(text)  # tokens at odd places
        plain = [self.plain(piece) for piece in pieces]
        needed = "".join(
            piece if ESCAPE in bare or self._texts.search(bare) else bare
            for piece, bare in zip(pieces, plain, strict=True)
        )
        return needed if [self.plain(piece) for piece in self._live.split(needed)] == plain else text

    def _encode_plain(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, parse_special=False)

    def _count_plain(self, text: str, most: int) -> int:
        return self._tokenizer.count(self.plain(text), most, parse_special=False)

    def _encode_pieces(self, text: str, encode_plain: Callable[[str], list[int]]) -> list[int]:
        ids: list[int] = []
        start = 0
        for match in self._live.finditer(text):
            if match.start() > start:
                ids += encode_plain(self.plain(text[start : match.start()]))
            ids.append(self._ids[match[0]])
            start = match.end()
        return ids + encode_plain(self.plain(text[start:])) if start < len(text) else ids

    def _rendered_plain(self, template: ChatTemplate, given: tuple[Any, Any, dict[str, Any]]) -> str:
        messages, tools, options = given
        text = template.render(messages, tools, **options)
        if ESCAPE in text or ascii(ESCAPE)[1:-1] in text:  # as JSON in a template may write it
            messages, tools, options = escaped(given)
            text = self.plain(template.render(messages, tools, **options))
        return text

    @staticmethod
    def _rendered(template: ChatTemplate, guarded: tuple[Any, Any, dict[str, Any]]) -> str | None:
        messages, tools, options = guarded
        try:
            return template.render(messages, tools, **options)
        except TemplateError:  # it searches for something that the marks hide
            return None


# From the strongest marks to those that hide least from the template: what is marked in texts, and how tags in texts of
# users and tools are treated.
_LEVELS: Final[tuple[tuple[Strength, TagUse], ...]] = (
    ("everywhere", "text"),
    ("everywhere", "in place"),
    ("at ends", "text"),
    ("at ends", "in place"),
    ("at ends", "token"),
)


def _marked(message: Mapping[str, Any], inside: Callable[[Any], Any], outside: Callable[[Any], Any]) -> Any:
    """A message with its texts marked; the texts of its calls are data that may come from anywhere."""
    if message.get("role") in _OUTSIDE_ROLES:
        return outside(message)
    if not message.get("tool_calls"):
        return inside(message)
    return {**inside({**message, "tool_calls": None}), "tool_calls": outside(message["tool_calls"])}


def _in_one_text(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """An assistant's message with its parts joined, if all of them are texts."""
    parts = message.get("content")
    if message.get("role") != "assistant" or not isinstance(parts, list):
        return message
    texts = [part.get("text") if isinstance(part, Mapping) else part for part in parts]
    if not all(isinstance(text, str) for text in texts):
        return message
    return {**message, "content": "".join(map(str, texts))}


def _as_list(tools: Sequence[Mapping[str, Any]]) -> list[Any]:
    given = as_items("tools", tools, "a list of mappings", TemplateError, f"a {type(tools).__name__}")
    checked: list[Any] = template_value(given, "tools")
    return checked
