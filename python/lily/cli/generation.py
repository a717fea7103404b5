"""Runs one prefill and the generation after it, and times both."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from lily.cli.progress import ProgressBars
from lily.cli.statistics import Statistics

if TYPE_CHECKING:
    from lily.chat import Chat, Event
    from lily.sampling import Sampling
    from lily.session import Session

__all__ = ["events_with_bar", "prefill", "timed_tokens"]

_BAR_TOKENS = 256  # shorter prompts get no progress bar


def prefill(session: Session, ids: Sequence[int], statistics: Statistics) -> None:
    """Advance the session to `ids`; if `ids` continue its tokens, only the rest is computed.

    Compares tokens, not text, because the same text may have different ids.
    """
    held = list(session.tokens)
    reused = len(held) if len(held) < len(ids) and list(ids[: len(held)]) == held else 0
    if not reused:
        session.reset()
    fresh = list(ids[reused:])
    statistics.prompt_tokens, statistics.reused_tokens = len(ids), reused
    start = time.perf_counter()
    with ProgressBars(unit="tokens") as bars:
        show = bars.visible and len(fresh) >= _BAR_TOKENS
        session.prefill(fresh, progress=functools.partial(bars.report, "prefill") if show else None)
    statistics.prefill_seconds = time.perf_counter() - start


def events_with_bar(chat: Chat, question: str) -> Iterator[Event]:
    """The events of a turn, with a progress bar on a terminal while a long prompt is computed."""
    begin: int | None = None

    def report(done: int, total: int) -> None:
        nonlocal begin
        begin = done if begin is None else begin
        if bars.visible and total - begin >= _BAR_TOKENS:
            bars.report("prefill", done - begin, total - begin)

    with contextlib.closing(chat.send(question, progress=report)) as events:  # type: ignore[type-var]
        with ProgressBars(unit="tokens") as bars:
            first = next(events)
        yield first
        yield from events


def timed_tokens(
    session: Session,
    statistics: Statistics,
    *,
    max_tokens: int,
    sampling: Sampling,
    stop_tokens: frozenset[int],
) -> Iterator[int]:
    """Yield the generated ids; `statistics` are always current, even if the caller stops early."""
    start = time.perf_counter()
    for token in session.generate(max_tokens=max_tokens, sampling=sampling, stop_tokens=stop_tokens):
        statistics.generated_tokens += 1
        statistics.decode_seconds = time.perf_counter() - start
        yield token
    statistics.decode_seconds = time.perf_counter() - start
    full = session.position >= session.model.max_context
    statistics.finish_reason = "length" if full or statistics.generated_tokens >= max_tokens else "stop"
