"""The work that continues raw prompts, as completions ask for it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lily.chat import ContentDelta, Done, Timings, TokenLogprob, Usage
from lily.chat.described_tokens import described_token
from lily.chat.events import Event
from lily.chat.output_stream import OutputStream, PlainReader
from lily.chat.side_by_side import side_by_side
from lily.errors import CancelledError
from lily.sampling import Sampling
from lily.server.engine import Ticket, Work
from lily.server.prompt_scores import prompt_logprobs

if TYPE_CHECKING:
    from lily.model import Model
    from lily.session import Session

__all__ = ["RawRequest", "raw_work"]


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
    output = OutputStream(
        model.tokenizer,
        generation,
        PlainReader(),
        request.stop,
        lambda: ticket.cancelled,
        logprobs=request.logprobs is not None,
        spell_control_tokens=True,
    )
    yield from output.events()
    stopped = generation.stop_token
    if request.scores_prompt and stopped is not None:
        yield ContentDelta("", (described_token(model.tokenizer, stopped),))
    model.cache.insert(session)
    if output.finish_reason is None:
        raise AssertionError("the output has not ended")
    yield Done(
        output.finish_reason,
        Usage(total, len(generation.tokens), session.cached_tokens if at == 0 else total),
        Timings(prefill, output.generation_seconds),
        stop_string=output.stop_string,
    )
