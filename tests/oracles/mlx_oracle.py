"""mlx-lm on its CPU backend as an oracle. Imports mlx when used; slow there, so keep inputs short.

As loaded, activations are bfloat16. With `single=True` every float parameter is cast to float32, which is
more exact and several times faster on a CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.utils import load_model
from numpy.typing import NDArray


def load(directory: Path, single: bool = False) -> nn.Module:
    """Loads a checkpoint directory with mlx-lm's own class."""
    mx.set_default_device(mx.cpu)
    model, _ = load_model(directory)
    if single:
        model.set_dtype(mx.float32)
    return model


def all_logits(model: nn.Module, ids: Sequence[int]) -> NDArray[np.float32]:
    """[positions, vocab_size]."""
    logits = model(mx.array([[int(token) for token in ids]]))[0].astype(mx.float32)
    return np.array(logits)


def score(model: nn.Module, ids: Sequence[int]) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
    """Log-probabilities of ids[1:] and the most likely token at each of those positions."""
    logits = all_logits(model, ids)[:-1].astype(np.float64)
    peak = logits.max(-1)
    normalizer = peak + np.log(np.exp(logits - peak[:, None]).sum(-1))
    return logits[np.arange(len(logits)), np.asarray(ids[1:])] - normalizer, logits.argmax(-1).astype(np.int32)
