"""The work of a request for the engine: turns of a chat, or continuations of a raw prompt."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from lily.chat import Chat, ContentDelta, Done, Timings, TokenLogprob, TurnOptions, Usage
from lily.chat.described_tokens import described_token
from lily.chat.events import Event, FinishReason
from lily.chat.roles import LaterSystem
from lily.chat.side_by_side import side_by_side
from lily.chat.stop_strings import StopStrings
from lily.chat.token_spans import TokenSpans
from lily.errors import CancelledError, ContextOverflowError, InvalidArgumentError, TemplateError
from lily.sampling import Sampling
from lily.server.context_errors import as_too_long, is_exact, most_tokens, too_long
from lily.server.engine import Ticket, Work
from lily.server.errors import as_api_error
from lily.server.prompt_scores import prompt_logprobs
from lily.server.steps import Steps
from lily.server.tool_definitions import RequestTools
from lily.server.work_limits import characters_of, check_tools, may_be_too_long, take_memory

if TYPE_CHECKING:
    from lily.generation import Generation
    from lily.model import Model
    from lily.session import Session
    from lily.text import Tokenizer

__all__ = [
    "ChatRequest",
    "RawRequest",
    "chat_work",
    "encoded",
    "errors_at",
    "prompt_length",
    "raw_work",
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


@dataclass(frozen=True)
class RawRequest:
    """A raw prompt to continue, `choices` times.

    With `scores_prompt` the first event of each choice has the log-probabilities of the prompt's tokens and no text,
    and the last one with log-probabilities that of the stop token, if one ended the text.
    """

    ids: Sequence[int]
    sampling: Sampling
    max_tokens: int | None
    stop: Sequence[str] = ()
    logprobs: int | None = None
    choices: int = 1
    scores_prompt: bool = False


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


def raw_work(model: Model, requests: Sequence[RawRequest]) -> Work:
    """The work that continues prompts; each prompt is one choice."""

    def work(ticket: Ticket) -> Iterator[tuple[int, Event]]:
        choice = 0
        for request in requests:
            for at, event in _continue(model, request, ticket):
                yield choice + at, event
            choice += request.choices

    return work


def _continue(model: Model, request: RawRequest, ticket: Ticket) -> Iterator[tuple[int, Event]]:
    """The continuations of one prompt, side by side."""
    began = time.perf_counter()
    if request.scores_prompt:
        scores = tuple(_prompt_logprobs(model, request, ticket))
        yield from ((at, ContentDelta("", scores)) for at in range(request.choices))
    if request.max_tokens == 0:  # nothing follows the prompt
        timings = Timings(time.perf_counter() - began, 0.0)
        for at in range(request.choices):
            yield at, Done("cancelled" if ticket.cancelled else "length", Usage(len(request.ids)), timings)
        return
    with contextlib.ExitStack() as sessions:
        first = sessions.enter_context(model.cached_session(request.ids, progress=ticket.report))
        ticket.on_cancel(first.cancel)
        prefill = time.perf_counter() - began
        branches = [first, *(sessions.enter_context(first.fork()) for _ in range(request.choices - 1))]
        yield from side_by_side(
            [
                _continuation(branch, request, at, prefill if at == 0 else 0.0, ticket)
                for at, branch in enumerate(branches)
            ]
        )


def _prompt_logprobs(model: Model, request: RawRequest, ticket: Ticket) -> list[TokenLogprob]:
    def progress(done: int, total: int) -> None:
        if ticket.cancelled:
            raise CancelledError("the request was cancelled")
        ticket.report(done, total)

    return prompt_logprobs(
        model,
        request.ids,
        request.logprobs or 0,
        on_session=lambda session: ticket.on_cancel(session.cancel),
        progress=progress,
    )


def _continuation(session: Session, request: RawRequest, at: int, prefill: float, ticket: Ticket) -> Iterator[Event]:
    model, total = session.model, len(request.ids)
    seed = request.sampling.seed
    sampling = request.sampling if seed is None else replace(request.sampling, seed=(seed + at) % (1 << 64))
    generation = session.generation(request.max_tokens, sampling=sampling, logprobs=request.logprobs)
    stop = StopStrings(request.stop)
    began = time.perf_counter()
    yield from _texts(model.tokenizer, generation, stop, ticket)
    stopped = generation.stop_token
    if request.scores_prompt and stopped is not None:
        yield ContentDelta("", (described_token(model.tokenizer, stopped),))
    finish: FinishReason = "stop" if stop.matched or generation.finish_reason == "stop" else "length"
    model.cache.insert(session)
    yield Done(
        "cancelled" if ticket.cancelled else finish,
        Usage(total, len(generation.tokens), session.cached_tokens if at == 0 else total),
        Timings(prefill, time.perf_counter() - began),
        stop_string=stop.matched,
    )


def _texts(tokenizer: Tokenizer, generation: Generation, stop: StopStrings, ticket: Ticket) -> Iterator[Event]:
    detokenizer = tokenizer.detokenizer()
    spans = TokenSpans()
    place = 0  # characters passed on so far

    def piece(text: str) -> Iterator[Event]:
        nonlocal place
        if text:
            yield ContentDelta(text, spans.take(text, place), start=place)
            place += len(text)

    with contextlib.suppress(CancelledError):
        for token in generation:
            text = detokenizer.feed(token.id)
            if token.logprob is not None:
                spans.add(described_token(tokenizer, token), text)
            yield from piece(stop.feed(text))
            if stop.matched is not None or ticket.cancelled:
                return
    rest = detokenizer.finish()
    spans.add_text(rest)
    yield from piece(stop.feed(rest))
    if stop.matched is None:
        yield from piece(stop.finish())
