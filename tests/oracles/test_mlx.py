"""mlx-lm on its CPU backend against the reference and against Lily, on the 4-bit lily-tiny."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("mlx.core")
pytest.importorskip("mlx_lm")

import lily_tiny
import reference
from golden.make_golden import load
from oracles import mlx_oracle
from oracles.compare import agreement, relative_logit_error
from oracles.inputs import decided_ids
from oracles.under_test import lily_model, logits_after, score

REFERENCE_ERROR = 1e-4
LOGIT_ERROR = 1e-3
TOP1_AGREEMENT = 0.995


@pytest.fixture(scope="module")
def single() -> Any:
    """lily-tiny in mlx-lm, computing in float32."""
    return mlx_oracle.load(lily_tiny.CHECKPOINT, single=True)


@pytest.fixture(scope="module")
def as_loaded() -> Any:
    """lily-tiny in mlx-lm with bfloat16 activations."""
    return mlx_oracle.load(lily_tiny.CHECKPOINT)


def test_reference(single: Any) -> None:
    ids = lily_tiny.document_ids()[5][:150]
    expected = mlx_oracle.all_logits(single, ids)
    logits = reference.load(lily_tiny.CHECKPOINT).forward(ids)
    assert relative_logit_error(logits, expected) <= REFERENCE_ERROR


def test_lily(single: Any) -> None:
    ids = decided_ids(reference.load(lily_tiny.CHECKPOINT), lily_tiny.document_ids()[6], 200)
    expected = mlx_oracle.all_logits(single, ids)
    with lily_model(lily_tiny.CHECKPOINT) as model:
        for length in (1, 64, 190):
            logits = logits_after(model, ids[:length], ids[length : length + 10])
            error = relative_logit_error(logits, expected[length - 1 : length + 10])
            assert error <= LOGIT_ERROR, f"{length} tokens: relative logit error {error:.2e}"
        share = agreement(score(model, ids)[1], expected[:-1].argmax(-1))
    assert share >= TOP1_AGREEMENT, f"top-1 agreement {share:.3%}"


def test_golden_values_are_mlx_lms_own(as_loaded: Any) -> None:
    """The beginning of each stored document, computed again; another length may round differently."""
    for document in load("mlx"):
        log_probabilities, chosen = mlx_oracle.score(as_loaded, document.ids[:25])
        assert np.abs(log_probabilities - document.log_probabilities[:24]).mean() <= 0.02
        assert agreement(chosen, document.chosen[:24]) >= 0.9


@pytest.mark.slow
def test_golden_values_in_full(as_loaded: Any) -> None:
    for document in load("mlx"):
        log_probabilities, chosen = mlx_oracle.score(as_loaded, document.ids)
        assert np.abs(log_probabilities - document.log_probabilities).max() <= 1e-3
        assert agreement(chosen, document.chosen) >= 0.999
