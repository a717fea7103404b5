"""Tokens with their texts, bytes and log-probabilities, as events and responses show them."""

from __future__ import annotations

from collections.abc import Sequence

from lily.chat.events import TokenLogprob
from lily.session.generation import GeneratedToken
from lily.text import Tokenizer

__all__ = ["described", "described_token"]


def described(tokenizer: Tokenizer, token: int, logprob: float, top: Sequence[tuple[int, float]] = ()) -> TokenLogprob:
    """A token with its text, and the most probable alternatives."""
    data = tokenizer.token_bytes(token)
    others = tuple(described(tokenizer, *one) for one in top)
    return TokenLogprob(data.decode("utf-8", "replace"), token, data, logprob, others)


def described_token(tokenizer: Tokenizer, token: GeneratedToken) -> TokenLogprob:
    """A token of a generation."""
    return described(tokenizer, token.id, token.logprob or 0.0, token.top_logprobs)
