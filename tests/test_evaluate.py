"""The scoring of skill answers, checked on the published outputs of the reference implementation."""

from __future__ import annotations

import pytest

import evaluate


@pytest.mark.parametrize("name", ["reference_4bit", "reference_bf16"])
def test_published_outputs_get_the_published_scores(name: str) -> None:
    reference = evaluate.reference_results(name)
    outputs = {output["id"]: output for output in reference["outputs"]}
    records = evaluate.skill_records()
    assert len(records) == len(outputs) == 276
    answers = []
    for record in records:
        output = outputs[record["id"]]
        correct = evaluate.is_correct(record, output["output"])
        assert correct == output["ok"], record["id"]
        answers.append(evaluate.Answer(record["id"], record["skill"], correct, output["output"]))
    results = reference["results"]
    assert evaluate.by_skill(answers) == results["skills"]
    assert round(evaluate.accuracy(answers), 4) == results["overall"]
    assert round(evaluate.tool_accuracy(answers), 4) == results["tools"]
    assert evaluate.same_outputs(answers, reference) == 1


@pytest.mark.parametrize(
    ("given", "expected", "same"),
    [
        ("7", 7, True),
        ("7.0", 7, True),
        ("seven", 7, False),
        ("true", True, True),
        ("True", True, False),
        ("a", "a", True),
        ("7", "7", True),
        ("7.0", "7", False),
        ('["a", 1]', ["a", 1], True),
        ("null", None, True),
    ],
)
def test_arguments_are_compared_by_type(given: str, expected: object, same: bool) -> None:
    assert evaluate.same_argument(given, expected) is same


def test_an_unfinished_thinking_block_is_no_answer() -> None:
    record = {
        "check": "exact",
        "chat_template_kwargs": {"enable_thinking": True},
        "expected": {"content": "Paris"},
    }
    assert evaluate.is_correct(record, "I know it.\n</think>\n\nParis")
    assert not evaluate.is_correct(record, "Paris, I think")
    call = "</think>\n<tool_call>\n<function=f>\n</function>\n</tool_call>"
    assert not evaluate.is_correct(record, "I know it.\n</think>\n\nParis" + call)
