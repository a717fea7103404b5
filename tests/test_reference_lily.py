"""Lily against the NumPy reference: random models of odd sizes in every format, and lily-tiny."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import lily_tiny
import reference
from golden.make_golden import Golden, load
from oracles import heldout
from oracles.compare import agreement, relative_logit_error
from oracles.inputs import decided_ids, random_tokens
from oracles.random_models import (
    AFFINE_SHAPES,
    PLAIN_SHAPES,
    Shape,
    write_affine,
    write_plain,
    write_plain_random,
)
from oracles.under_test import lily_model, logits_after, score

LOGIT_ERROR = 1e-3
TOP1_AGREEMENT = 0.995
PERPLEXITY_CHANGE = 1e-3
PROMPT_LENGTHS = (1, 2, 3, 5, 16, 31, 64, 65, 130)
FEW_LENGTHS = (1, 7, 130)  # where a variant differs from another one in its storage only
DECODED = 5


def check_logits(directory: Path, vocab: int, seed: int, lengths: tuple[int, ...] = PROMPT_LENGTHS) -> None:
    """Logits after prompts of every length, and after some tokens decoded behind each."""
    random = np.random.default_rng(seed)
    expected_model = reference.load(directory)
    with lily_model(directory) as model:
        for length in lengths:
            ids = decided_ids(expected_model, random_tokens(vocab, random), length + DECODED)
            expected = expected_model.forward(ids)
            logits = logits_after(model, ids[:length], ids[length:])
            assert logits.dtype == np.float32 and logits.shape == (DECODED + 1, vocab)
            error = relative_logit_error(logits, expected[length - 1 :])
            assert error <= LOGIT_ERROR, f"{length} tokens: relative logit error {error:.2e}"


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
@pytest.mark.parametrize("shape", PLAIN_SHAPES + AFFINE_SHAPES, ids=lambda shape: shape.name)
def test_random_plain_models(shape: Shape, dtype: str, tmp_path: Path) -> None:
    fused = dtype != "F16"
    write_plain_random(tmp_path, shape, 31, fused, dtype)
    check_logits(tmp_path, shape.vocab, 32, PROMPT_LENGTHS if dtype == "BF16" else FEW_LENGTHS)


@pytest.mark.parametrize(("bits", "group_size"), [(4, 64), (8, 64), (4, 32), (8, 32)])
@pytest.mark.parametrize("shape", AFFINE_SHAPES, ids=lambda shape: shape.name)
def test_random_affine_models(shape: Shape, bits: int, group_size: int, tmp_path: Path) -> None:
    dtype = "F16" if group_size == 32 else "BF16"
    write_affine(tmp_path, shape, 33, group_size, bits, dtype)
    check_logits(tmp_path, shape.vocab, 34, PROMPT_LENGTHS if group_size == 64 else FEW_LENGTHS)


@pytest.mark.parametrize("bits", [4, 8])
def test_groups_of_128(bits: int, tmp_path: Path) -> None:
    shape = Shape(
        "wide_groups",
        hidden=256,
        vocab=300,
        layers=("linear_attention", "full_attention"),
        attention=(2, 1, 128),
        linear=(1, 3, 128, 128),
        experts=(9, 4),
        intermediate=(128, 256),
    )
    write_affine(tmp_path, shape, 35, 128, bits)
    check_logits(tmp_path, shape.vocab, 36)


def test_choices_of_random_models(tmp_path: Path) -> None:
    """Any tokens, routing ties included: all positions of all models together."""
    random = np.random.default_rng(39)
    chosen, expected_chosen = [], []
    for shape in PLAIN_SHAPES + AFFINE_SHAPES:
        directory = tmp_path / shape.name
        if shape in AFFINE_SHAPES:
            write_affine(directory, shape, 40)
        else:
            write_plain_random(directory, shape, 40)
        ids = random.integers(0, shape.vocab, 300)
        with lily_model(directory) as model:
            chosen.append(score(model, ids)[1])
        expected_chosen.append(reference.load(directory).score(ids)[1])
    share = agreement(np.concatenate(chosen), np.concatenate(expected_chosen))
    assert share >= TOP1_AGREEMENT, f"top-1 agreement {share:.3%}"


def test_random_scores_are_log_probabilities(tmp_path: Path) -> None:
    shape = AFFINE_SHAPES[0]
    write_affine(tmp_path, shape, 37)
    ids = np.random.default_rng(38).integers(0, shape.vocab, 100)
    expected, _ = reference.load(tmp_path).score(ids)
    with lily_model(tmp_path) as model:
        log_probabilities, _ = score(model, ids)
    assert log_probabilities.shape == (99,)
    assert np.abs(log_probabilities - expected).max() <= 5e-3


def test_lily_tiny_logits() -> None:
    expected_model = reference.load(lily_tiny.CHECKPOINT)
    ids = decided_ids(expected_model, lily_tiny.document_ids()[0], 220)
    expected = expected_model.forward(ids)
    with lily_model(lily_tiny.CHECKPOINT) as model:
        for length in (1, 2, 63, 130, 200):
            following = ids[length : length + 20]
            logits = logits_after(model, ids[:length], following)
            error = relative_logit_error(logits, expected[length - 1 : length + 20])
            assert error <= LOGIT_ERROR, f"{length} tokens: relative logit error {error:.2e}"


def test_lily_tiny_as_bfloat16(tmp_path: Path) -> None:
    """lily-tiny's values expanded and rounded to bfloat16, in the vendor's layout."""
    config = reference.read_config(lily_tiny.CHECKPOINT)
    weights = reference.load_weights(lily_tiny.CHECKPOINT, config, np.float32)
    text = json.loads((lily_tiny.CHECKPOINT / "config.json").read_text())["text_config"]
    write_plain(tmp_path, weights, text)
    expected_model = reference.load(tmp_path)
    ids = decided_ids(expected_model, lily_tiny.document_ids()[1], 300)
    expected = expected_model.forward(ids)
    with lily_model(tmp_path) as model:
        for length in (1, 100, 290):
            logits = logits_after(model, ids[:length], ids[length : length + 10])
            error = relative_logit_error(logits, expected[length - 1 : length + 10])
            assert error <= LOGIT_ERROR, f"{length} tokens: relative logit error {error:.2e}"
        share = agreement(score(model, ids)[1], expected[:-1].argmax(-1))
    assert share >= TOP1_AGREEMENT, f"top-1 agreement {share:.3%}"


def test_golden_values_are_the_references_own() -> None:
    """The stored values of some documents' beginnings, computed again."""
    stored, ids = load("reference"), lily_tiny.document_ids()
    assert len(stored) == len(ids) == 26
    assert sum(len(document.chosen) for document in stored) == 33438
    model = reference.load(lily_tiny.CHECKPOINT)
    for index in (0, 9, 25):
        assert np.array_equal(stored[index].ids, ids[index])
        log_probabilities, chosen = model.score(ids[index][:120])
        assert np.abs(stored[index].log_probabilities[:119] - log_probabilities).max() <= 1e-5
        assert (stored[index].chosen[:119] == chosen).all()


@pytest.fixture(scope="module")
def lily_heldout() -> Iterator[list[Golden]]:
    yield heldout.lily_run(lily_tiny.CHECKPOINT, load("reference"))


def test_held_out_text(lily_heldout: list[Golden], record_property: pytest.RecordProperty) -> None:
    for count in (3, 26):
        result = heldout.between(lily_heldout[:count], load("reference")[:count])
        record_property(f"lily from the reference, {count} documents", str(result))
        print(f"lily from the reference, {count} documents: {result}")
        assert result.top1_agreement >= TOP1_AGREEMENT, str(result)
        assert abs(result.perplexity_change) <= PERPLEXITY_CHANGE, str(result)


def test_lily_is_no_farther_from_the_reference_than_mlx_lm(
    lily_heldout: list[Golden], record_property: pytest.RecordProperty
) -> None:
    mlx = load("mlx")
    expected = load("reference")[: len(mlx)]
    lily = lily_heldout[: len(mlx)]
    ours, theirs = heldout.between(lily, expected), heldout.between(mlx, expected)
    record_property("lily from mlx-lm", str(heldout.between(lily, mlx)))
    print(f"mlx-lm from the reference: {theirs}\nlily from mlx-lm: {heldout.between(lily, mlx)}")
    assert abs(ours.perplexity_change) <= abs(theirs.perplexity_change), f"lily: {ours}; mlx-lm: {theirs}"
    assert ours.top1_agreement >= theirs.top1_agreement, f"lily: {ours}; mlx-lm: {theirs}"
    assert ours.log_probability_error <= theirs.log_probability_error, f"lily: {ours}; mlx-lm: {theirs}"
