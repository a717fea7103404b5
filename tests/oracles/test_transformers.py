"""transformers' Qwen3_5MoeForCausalLM against the reference and against Lily, in float32 on the CPU."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers.models.qwen3_5_moe")

import lily_tiny  # noqa: E402
import reference  # noqa: E402
from oracles import transformers_oracle  # noqa: E402
from oracles.compare import agreement, relative_logit_error  # noqa: E402
from oracles.inputs import decided_ids, random_tokens  # noqa: E402
from oracles.random_models import AFFINE_SHAPES, PLAIN_SHAPES, Shape  # noqa: E402
from oracles.under_test import lily_model, logits_after, score  # noqa: E402

REFERENCE_ERROR = 1e-4
LOGIT_ERROR = 1e-3
TOP1_AGREEMENT = 0.995
PROMPT_LENGTHS = (1, 2, 3, 7, 63, 64, 65, 130)
DECODED = 4
ALL_SHAPES = PLAIN_SHAPES + AFFINE_SHAPES


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny products are no faster on several threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=ALL_SHAPES, ids=lambda shape: shape.name)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Shape, Path]:
    """A random bfloat16 checkpoint that transformers itself wrote."""
    directory = tmp_path_factory.mktemp(request.param.name)
    transformers_oracle.save_random(directory, request.param, seed=41)
    return request.param, directory


@pytest.fixture(scope="module")
def dequantized() -> Any:
    """lily-tiny expanded to float32."""
    text = json.loads((lily_tiny.CHECKPOINT / "config.json").read_text())["text_config"]
    return transformers_oracle.load_dequantized(lily_tiny.CHECKPOINT, text)


def test_reference_on_random_models(saved: tuple[Shape, Path]) -> None:
    shape, directory = saved
    random = np.random.default_rng(42)
    oracle, model = transformers_oracle.load_saved(directory), reference.load(directory)
    for length in PROMPT_LENGTHS:
        ids = random.integers(0, shape.vocab, length)
        logits = model.forward(ids)
        assert relative_logit_error(transformers_oracle.all_logits(oracle, ids), logits) <= REFERENCE_ERROR


def test_lily_on_random_models(saved: tuple[Shape, Path]) -> None:
    shape, directory = saved
    random = np.random.default_rng(43)
    oracle, judge = transformers_oracle.load_saved(directory), reference.load(directory)
    with lily_model(directory) as model:
        for length in PROMPT_LENGTHS:
            ids = decided_ids(judge, random_tokens(shape.vocab, random), length + DECODED)
            expected = transformers_oracle.all_logits(oracle, ids)
            logits = logits_after(model, ids[:length], ids[length:])
            error = relative_logit_error(logits, expected[length - 1 :])
            assert error <= LOGIT_ERROR, f"{length} tokens: relative logit error {error:.2e}"


def test_lilys_choices_on_random_models(tmp_path: Path) -> None:
    """Any tokens, routing ties included: all positions of all models together."""
    random = np.random.default_rng(44)
    chosen, expected_chosen = [], []
    for shape in ALL_SHAPES:
        directory = tmp_path / shape.name
        transformers_oracle.save_random(directory, shape, seed=45)
        ids = random.integers(0, shape.vocab, 200)
        with lily_model(directory) as model:
            chosen.append(score(model, ids)[1])
        logits = transformers_oracle.all_logits(transformers_oracle.load_saved(directory), ids)
        expected_chosen.append(logits[:-1].argmax(-1))
    share = agreement(np.concatenate(chosen), np.concatenate(expected_chosen))
    assert share >= TOP1_AGREEMENT, f"top-1 agreement {share:.3%}"


def test_reference_on_lily_tiny(dequantized: Any) -> None:
    model = reference.load(lily_tiny.CHECKPOINT)
    for ids in lily_tiny.document_ids()[:4]:
        logits = model.forward(ids[:200])
        expected = transformers_oracle.all_logits(dequantized, ids[:200])
        assert relative_logit_error(logits, expected) <= REFERENCE_ERROR
        assert agreement(logits.argmax(-1), expected.argmax(-1)) >= TOP1_AGREEMENT


def test_lily_on_lily_tiny(dequantized: Any) -> None:
    chosen, expected_chosen = [], []
    judge = reference.load(lily_tiny.CHECKPOINT)
    with lily_model(lily_tiny.CHECKPOINT) as model:
        for document in lily_tiny.document_ids()[4:8]:
            ids = decided_ids(judge, document, 260)
            expected = transformers_oracle.all_logits(dequantized, ids)
            logits = logits_after(model, ids[:250], ids[250:])
            error = relative_logit_error(logits, expected[249:])
            assert error <= LOGIT_ERROR, f"relative logit error {error:.2e}"
            chosen.append(score(model, ids)[1])
            expected_chosen.append(expected[:-1].argmax(-1))
    share = agreement(np.concatenate(chosen), np.concatenate(expected_chosen))
    assert share >= TOP1_AGREEMENT, f"top-1 agreement {share:.3%}"
