"""The sampler written down again in NumPy, slowly: what the tests compare with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray


def adjusted_logits(
    logits: NDArray[np.float32],
    output: Iterable[int] = (),
    *,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    repetition_penalty: float = 1.0,
    logit_bias: Mapping[int, float] | None = None,
    allowed: NDArray[np.bool_] | None = None,
) -> NDArray[np.float64]:
    result = logits.astype(np.float64)
    for token, count in Counter(output).items():
        factor = 1 / repetition_penalty if result[token] > 0 else repetition_penalty
        result[token] = result[token] * factor - presence_penalty - frequency_penalty * count
    for token, bias in (logit_bias or {}).items():
        result[token] += bias
    if allowed is not None:
        result[~allowed] = -np.inf
    return result


def distribution(
    adjusted: NDArray[np.float64], temperature: float, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> NDArray[np.float64]:
    """Probability of each token to be drawn."""
    weights = np.exp((adjusted - adjusted.max()) / temperature)
    order = np.lexsort((np.arange(len(weights)), -adjusted))
    order = order[: top_k or len(order)]
    order = order[np.isfinite(adjusted[order])]
    masses = np.cumsum(weights[order])
    before = np.concatenate([[0.0], masses[:-1]])
    kept = order[before < top_p * masses[-1]] if top_p < 1 else order
    kept = kept[(weights[kept] >= min_p) | (np.arange(len(kept)) == 0)]
    result = np.zeros_like(weights)
    result[kept] = weights[kept] / weights[kept].sum()
    return result


def pack(allowed: NDArray[np.bool_]) -> NDArray[np.uint32]:
    """A mask in the form that the sampler takes."""
    padded = np.zeros(-(-len(allowed) // 32) * 32, dtype=bool)
    padded[: len(allowed)] = allowed
    return np.packbits(padded, bitorder="little").view(np.uint32)
