"""The figures by which two implementations are compared."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


def relative_logit_error(logits: NDArray, expected: NDArray) -> float:
    """The largest over positions of max |logits - expected| / max |expected| over the vocabulary.

    Both are [vocab_size] or [positions, vocab_size].
    """
    assert logits.shape == expected.shape
    assert np.isfinite(logits).all(), "logits are not finite"
    difference = np.abs(logits.astype(np.float64) - expected).max(-1)
    return float((difference / np.abs(expected).max(-1)).max())


def agreement(chosen: NDArray[np.integer], expected: NDArray[np.integer]) -> float:
    """The share of positions with the same most likely token."""
    assert chosen.shape == expected.shape
    return float(np.mean(chosen == expected))


def perplexity(log_probabilities: NDArray) -> float:
    """exp of the mean negative log-probability."""
    return math.exp(-float(np.mean(log_probabilities, dtype=np.float64)))


@dataclass(frozen=True)
class Distance:
    """How far one teacher-forced run over a text is from another."""

    perplexity: float
    perplexity_change: float  # relative, signed
    top1_agreement: float
    log_probability_error: float  # mean magnitude of the difference, nats

    def __str__(self) -> str:
        return (
            f"perplexity {self.perplexity:.4f} ({self.perplexity_change:+.3%}), "
            f"top-1 agreement {self.top1_agreement:.3%}, "
            f"mean log-probability difference {self.log_probability_error:.5f} nats"
        )


def distance(
    log_probabilities: NDArray,
    chosen: NDArray[np.integer],
    expected_log_probabilities: NDArray,
    expected_chosen: NDArray[np.integer],
) -> Distance:
    """Compares per-position log-probabilities and most likely tokens with those of another run."""
    assert log_probabilities.shape == expected_log_probabilities.shape
    value = perplexity(log_probabilities)
    return Distance(
        perplexity=value,
        perplexity_change=value / perplexity(expected_log_probabilities) - 1,
        top1_agreement=agreement(chosen, expected_chosen),
        log_probability_error=float(np.abs(log_probabilities - expected_log_probabilities).mean(dtype=np.float64)),
    )
