"""The work that answers a conversation, and the checks before it that a prompt can fit."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from lily.chat import Chat, TurnOptions
from lily.chat.events import Event
from lily.chat.roles import LaterSystem
from lily.errors import ContextOverflowError, InvalidArgumentError, TemplateError
from lily.server.context_errors import as_too_long, is_exact, most_tokens, too_long
from lily.server.engine import Ticket, Work
from lily.server.errors import as_api_error
from lily.server.steps import Steps
from lily.server.tool_definitions import RequestTools
from lily.server.work_limits import characters_of, check_tools, may_be_too_long, take_memory

if TYPE_CHECKING:
    from lily.model import Model

__all__ = [
    "ChatRequest",
    "chat_work",
    "encoded",
    "errors_at",
    "prompt_length",
    "refuse_oversized",
]

_MOST_CHARACTERS = 1 << 22  # characters of a prompt, unless the context is so large that more could fit
_LEAST_COUNTED = 1 << 17  # minimum of tokens that are counted, however small the context is
_COUNTED_CONTEXTS = 2  # a prompt of more than this many contexts is refused without counting all of it
_CHARACTERS = 16  # average characters of a token; only repetitive text has more


@dataclass(frozen=True)
class ChatRequest:
    """A conversation to answer, `choices` times.

    `places` are the messages' names in the request, for errors; None: messages[0] and so on. `format_field` is that of
    the response format, `tools_of_client` tells how the client calls the tools.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None
    thinking: bool | None
    options: TurnOptions
    choices: int = 1
    preserve_thinking: bool = False
    later_system: LaterSystem = "refuse"
    template_options: Mapping[str, Any] = field(default_factory=dict)
    places: Sequence[str] | None = None
    format_field: str = "response_format"
    tools_of_client: RequestTools | None = None


@contextlib.contextmanager
def errors_at(places: Sequence[str] | None, format_field: str = "response_format") -> Iterator[None]:
    """Make errors about messages and the response format name their places in the request."""
    try:
        yield
    except (TemplateError, InvalidArgumentError) as error:
        raise as_api_error(error, places, format_field=format_field) from error


def prompt_length(model: Model, request: ChatRequest, steps: Steps, most: int | None = None) -> int:
    """Number of tokens of a conversation's prompt, counted up to somewhat more than fit.

    Errors as for `refuse_oversized`; a prompt of more than `most` tokens raises an ApiError that names an upper bound.
    """
    most = max(2 * model.max_context, _LEAST_COUNTED) if most is None else most
    try:
        refuse_oversized(model, request, steps, most)
        with errors_at(request.places, request.format_field), _chat(model, request, call_deltas=False) as chat:
            return chat.prompt_length(most)
    except ContextOverflowError:
        raise too_long(most_tokens(request.messages, request.tools), model.max_context) from None


def refuse_oversized(model: Model, request: ChatRequest, steps: Steps, most: int | None = None) -> None:
    """Raise for conversations that cannot fit, before they are rendered and encoded.

    Raises
    ------
    InvalidArgumentError
        There are too many tools.
    ContextOverflowError
        The texts are far longer than the context.
    ApiError
        There is not enough memory to encode them.
    """
    tools = request.tools or ()
    check_tools(tools)
    _check_characters(model, characters_of(request.messages) + characters_of(tools))
    take_memory(model, [*request.messages, *tools], steps, most)
    steps.check()


def encoded(model: Model, text: str, steps: Steps) -> list[int]:
    """The ids of a raw prompt.

    Raises
    ------
    ApiError
        The text is longer than the context, or there is not enough memory to encode it.
    """
    most = _COUNTED_CONTEXTS * model.max_context
    try:
        _check_characters(model, len(text))
        take_memory(model, [text], steps, most)
        count = model.tokenizer.count(text, most) if may_be_too_long(model, [text]) else 0
    except ContextOverflowError:
        count = most + 1
    if count > model.max_context:
        exact = count <= most
        raise too_long(count if exact else len(text.encode("utf-8", "replace")), model.max_context, "prompt") from None
    return model.tokenizer.encode(text, check=steps.check)


def _check_characters(model: Model, count: int) -> None:
    if count > max(_MOST_CHARACTERS, _CHARACTERS * model.max_context):
        raise _overflow(model, count)


def _overflow(model: Model, characters: int) -> ContextOverflowError:
    return ContextOverflowError(
        f"the prompt has {characters} characters, more than {model.max_context} tokens, the maximum context "
        "(max_context of Model.load)"
    )


def chat_work(model: Model, request: ChatRequest, steps: Steps, *, call_deltas: bool = False) -> Work:
    """The work that answers a conversation; its items are (choice, event). Errors as for `prompt_length`."""
    counted = _COUNTED_CONTEXTS * model.max_context
    if may_be_too_long(model, [*request.messages, *(request.tools or ())]):
        count = prompt_length(model, request, steps, counted)
        if count > model.max_context:
            raise too_long(count, model.max_context)
    else:
        refuse_oversized(model, request, steps)

    def work(ticket: Ticket) -> Iterator[tuple[int, Event]]:
        with errors_at(request.places, request.format_field), _exact_overflow(model, request, counted):
            chat = _chat(model, request, call_deltas=call_deltas)
            ticket.on_cancel(chat.cancel)
            events = chat.alternatives(count=request.choices, progress=ticket.report)
            tools = request.tools_of_client
            with chat, contextlib.closing(events):  # type: ignore[type-var]
                yield from events if tools is None else tools.events_for_client(events)

    return work


@contextlib.contextmanager
def _exact_overflow(model: Model, request: ChatRequest, most: int) -> Iterator[None]:
    """Add the token count to the error for a prompt whose texts are short but which the template makes long."""
    try:
        yield
    except ContextOverflowError as error:
        told = as_too_long(str(error))
        if not is_exact(str(error)):
            try:
                with _chat(model, request, call_deltas=False) as chat:
                    told = too_long(chat.prompt_length(most), model.max_context)
            except ContextOverflowError:
                told = too_long(most_tokens(request.messages, request.tools), model.max_context)
        raise told from None


def _chat(model: Model, request: ChatRequest, *, call_deltas: bool) -> Chat:
    return Chat(
        model,
        replace(request.options, call_deltas=call_deltas),
        messages=request.messages,
        tools=request.tools,
        thinking=request.thinking,
        preserve_thinking=request.preserve_thinking,
        later_system=request.later_system,
        template_options=request.template_options,
    )
