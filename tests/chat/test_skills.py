"""lily-tiny's skills: what the parser makes of the reference's answers, and whole chats that call tools."""

import pytest

from evaluate import reference_results, skill_records
from lily import Sampling
from parsing import parse_every_way

CALLS = [record for record in skill_records() if record["check"] == "tool_calls"]
OUTPUTS = {output["id"]: output for output in reference_results()["outputs"]}


def expected_calls(record):
    return [(call["name"], call["arguments"]) for call in record["expected"]["tool_calls"]]


def test_every_good_answer_of_the_reference_is_read_as_expected():
    good = [record for record in CALLS if OUTPUTS[record["id"]]["ok"]]
    assert len(good) > 45
    for record in good:
        thinking = record["chat_template_kwargs"].get("enable_thinking", True)
        result = parse_every_way(OUTPUTS[record["id"]]["output"], reasoning=thinking, tools=record["tools"])
        assert result["calls"] == expected_calls(record), record["id"]
        assert result["content"] == (record["expected"].get("content") or "")
        assert bool(result["reasoning"]) == thinking


def test_other_answers_hold_no_calls():
    for record in skill_records():
        if record["check"] != "tool_calls" and OUTPUTS[record["id"]]["ok"]:
            thinking = record["chat_template_kwargs"].get("enable_thinking", True)
            output = OUTPUTS[record["id"]]["output"]
            result = parse_every_way(output, reasoning=thinking, tools=record.get("tools"))
            assert result["calls"] == []
            expected = output.partition("</think>")[2].lstrip("\n") if thinking else output
            assert result["content"] == expected


@pytest.mark.parametrize(
    "record", [record for record in CALLS if OUTPUTS[record["id"]]["ok"]][::4], ids=lambda record: record["id"]
)
def test_chats_make_the_expected_calls(model, record):
    thinking = record["chat_template_kwargs"].get("enable_thinking", True)
    chat = model.chat(messages=record["messages"], tools=record["tools"], thinking=thinking, sampling=Sampling.greedy())
    answer = chat.ask(max_tokens=400)
    assert [(call.name, call.arguments) for call in answer.tool_calls] == expected_calls(record)
    assert answer.finish_reason == "tool_calls"
