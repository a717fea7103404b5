"""The bundled model answers its skills as well as the reference implementation does."""

from __future__ import annotations

import pytest

import evaluate
from oracles.under_test import lily_model

POINTS = 0.02


@pytest.fixture(scope="module")
def answers() -> list[evaluate.Answer]:
    with lily_model("lily-tiny", threads=1) as model:  # single tokens of a tiny model gain nothing from more
        return evaluate.answer_all(model, evaluate.skill_records())


def test_accuracy(answers: list[evaluate.Answer], record_property: pytest.RecordProperty) -> None:
    reference = evaluate.reference_results()
    overall, tools = evaluate.accuracy(answers), evaluate.tool_accuracy(answers)
    same = evaluate.same_outputs(answers, reference)
    record_property("accuracy", overall)
    record_property("outputs equal to the reference's", same)
    print(f"accuracy {overall:.4f}, tools {tools:.4f}, outputs equal to the reference's {same:.1%}")
    assert overall == pytest.approx(reference["results"]["overall"], abs=POINTS), evaluate.by_skill(answers)
    assert tools == pytest.approx(reference["results"]["tools"], abs=POINTS), evaluate.by_skill(answers)
