"""lily-tiny on the sim device, kernel by kernel the GPU engine: teacher-forced over held-out text, and its answers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import lily
from golden.make_golden import Golden, load
from oracles.compare import Distance, distance

# Positions scored: the first ones of the held-out text. tests/oracles/heldout.py --backend sim scores whole documents.
POSITIONS = 520
# mlx-lm's bfloat16 path is 0.478 % from the float32 reference on the first three documents.
PERPLEXITY_BOUND = 0.0048
# Lily's GPU engine rounds activations to bfloat16 between kernels; the model's own near-ties decide the rest.
TOP1_BOUND = 0.97


def some_documents() -> list[Golden]:
    chosen: list[Golden] = []
    left = POSITIONS
    for document in load("reference"):
        count = min(left, len(document.log_probabilities))
        if count:
            chosen.append(
                Golden(document.ids[: count + 1], document.log_probabilities[:count], document.chosen[:count])
            )
        left -= count
    return chosen


def scores(model: lily.Model, documents: list[Golden]) -> list[Golden]:
    results = []
    for document in documents:
        with model.session() as session:
            log_probabilities, chosen = session.score(document.ids, return_argmax=True)
        results.append(Golden(document.ids, log_probabilities, chosen))
    return results


def between(runs: list[Golden], expected: list[Golden]) -> Distance:
    return distance(
        np.concatenate([run.log_probabilities for run in runs]),
        np.concatenate([run.chosen for run in runs]),
        np.concatenate([run.log_probabilities for run in expected]),
        np.concatenate([run.chosen for run in expected]),
    )


@pytest.fixture(scope="module")
def on() -> Iterator[lily.Model]:
    with lily.Model.load("lily-tiny", backend="sim") as model:
        yield model


@pytest.fixture(scope="module")
def with_all(on: lily.Model) -> list[Golden]:
    return scores(on, some_documents())


def test_teacher_forced_against_the_reference_with_all_mechanisms_on_and_off(with_all: list[Golden]) -> None:
    documents = some_documents()
    with lily.Model.load("lily-tiny", backend="sim", options=lily.GpuOptions().without("all")) as off:
        with_none = scores(off, documents)
    for distance_of in (between(with_all, documents), between(with_none, documents), between(with_all, with_none)):
        assert distance_of.top1_agreement >= TOP1_BOUND, distance_of
        assert abs(distance_of.perplexity_change) <= PERPLEXITY_BOUND, distance_of


def test_decode_agrees_with_the_prompt_path(on: lily.Model, with_all: list[Golden]) -> None:
    document = some_documents()[0]
    count = 40
    begin = 60
    with on.session() as session:
        session.prefill(document.ids[:begin])
        chosen = [int(session.decode(int(token)).argmax()) for token in document.ids[begin : begin + count]]
    expected = with_all[0].chosen[begin : begin + count]
    assert np.mean(np.array(chosen) == expected) >= TOP1_BOUND - 1 / count


def test_greedy_answer_is_the_cpu_backends(on: lily.Model) -> None:
    message = [{"role": "user", "content": "Hello, who are you?"}]
    answers = []
    with lily.Model.load("lily-tiny", backend="cpu") as cpu:
        for model in (on, cpu):
            with model.session() as session:
                session.prefill(model.render_chat(message))
                ids = list(session.generate(48, sampling=lily.Sampling.greedy()))
            answers.append(model.tokenizer.decode(ids))
    assert answers[0] == answers[1]
