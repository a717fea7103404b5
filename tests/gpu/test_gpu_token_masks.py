"""A mask of tokens belongs to one call: another generation that uses the same request does not change it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import lily
from deferred_device import model_on, run_stage
from engine_helpers import random_ids
from lily import _core, _test_doubles

PROMPT = random_ids(5, seed=3)


def only(token: int, vocab_size: int) -> NDArray[np.uint32]:
    mask = np.zeros((vocab_size + 31) // 32, np.uint32)
    mask[token // 32] = 1 << (token % 32)
    return mask


def test_a_request_keeps_no_mask(checkpoint: Path, cpu_model: lily.Model) -> None:
    size = cpu_model.sampled_vocab_size
    request = _core.TokenRequest(lily.Sampling.greedy().to_core(), 0, size, [], 0, None)
    chosen: list[int] = []
    interrupts = False

    def stage(launches: list[Any]) -> None:
        nonlocal interrupts
        if interrupts:  # the other generation's call has its mask already
            interrupts = False
            chosen.append(other.core.next_token(request, only(9, size), revision).token)
        run_stage(launches)

    device = _test_doubles.CallbackDevice(stage)
    with model_on(device, checkpoint) as model, model.session() as session, cpu_model.session() as other:
        session.prefill(PROMPT)
        other.prefill(PROMPT)
        revision = other.core.begin_generation()
        first = session.core.begin_generation()
        chosen.append(session.core.next_token(request, only(5, size), first).token)
        interrupts = True
        chosen.append(session.core.next_token(request, only(6, size), first + 1).token)
    assert chosen == [5, 9, 6]
