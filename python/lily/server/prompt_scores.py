"""Log-probabilities of the tokens of a prompt, as completions with `echo` report them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from lily.chat import TokenLogprob
from lily.chat.described_tokens import described
from lily.sampling import Sampling

if TYPE_CHECKING:
    from lily.model import Model
    from lily.session import Progress, Session

__all__ = ["prompt_logprobs"]

_Top = tuple[tuple[int, float], ...]


def prompt_logprobs(
    model: Model, ids: Sequence[int], count: int, *, on_session: Callable[[Session], object], progress: Progress
) -> list[TokenLogprob]:
    """Each token of a prompt with its log-probability, which is NaN for the first one.

    Only the logits of one position or one chunk are kept at a time, however long the prompt is.

    Parameters
    ----------
    model, ids
        The model and the prompt.
    count
        How many of the most probable tokens to report. For more than one the prompt is computed token by token, which
        takes as long as generating it.
    on_session
        Called with the session that computes.
    progress
        As in `Session.prefill`.
    """
    tokenizer = model.tokenizer
    with model.session() as session:
        on_session(session)
        if len(ids) < 2:
            rest: list[tuple[float, _Top]] = []
        elif count < 2:
            rest = _scored(session, ids, count, progress)
        else:
            rest = _generated(session, ids, count, progress)
    tokens = [described(tokenizer, ids[0], math.nan)]
    return tokens + [described(tokenizer, token, *one) for token, one in zip(ids[1:], rest, strict=True)]


def _scored(session: Session, ids: Sequence[int], count: int, progress: Progress) -> list[tuple[float, _Top]]:
    scores, argmax = session.score(ids, progress=progress, return_argmax=True)
    best = scores
    if count and not np.array_equal(argmax, ids[1:]):
        best = np.where(argmax == ids[1:], scores, session.score(ids, progress=progress, targets=argmax))
    tops = zip(argmax.tolist(), best.tolist(), strict=True)
    return [(score, (top,) if count else ()) for score, top in zip(scores.tolist(), tops, strict=True)]


def _generated(session: Session, ids: Sequence[int], count: int, progress: Progress) -> list[tuple[float, _Top]]:
    """Generates the prompt itself, with a mask that allows only its next token."""
    total = len(ids)
    session.prefill(ids[:1])
    words = (session.model.sampled_vocab_size + 31) // 32
    mask = np.zeros(words, dtype=np.uint32)
    found: list[tuple[float, _Top]] = []
    generation = session.generation(total - 1, sampling=Sampling.greedy(), stop_tokens=(), logprobs=count)
    generation.mask = lambda: mask
    for at, token in enumerate(ids[1:], 1):
        mask[token // 32] = 1 << (token % 32)
        made = next(generation)
        mask[token // 32] = 0
        found.append((made.logprob or 0.0, made.top_logprobs))
        progress(at + 1, total)
    return found
