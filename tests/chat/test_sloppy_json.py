"""Calls and values that are nearly JSON: what can mean one thing only is read, whatever the cuts; the rest is text."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz.call_texts import json_values
from lily.chat.sloppy_json import as_json, json_number
from parsing import call_text, parse_every_way, parse_with_deltas, tool

TOOLS = [tool("f", a={}, b={}, o={"type": "object"}), tool("now")]

READ = {
    '{"a": 1,}': {"a": 1},
    '{"a": [1, 2, ], }': {"a": [1, 2]},
    "{'a': 'x'}": {"a": "x"},
    "{'a': 'it\\'s \"so\"'}": {"a": 'it\'s "so"'},
    '{"a": "it\'s"}': {"a": "it's"},
    "{'a': True, \"b\": False}": {"a": True, "b": False},
    "{'a': None, 'b': true}": {"a": None, "b": True},
    "{a: 1, b: 'x'}": {"a": 1, "b": "x"},
    '{"a": 1 // one\n, "b": 2}': {"a": 1, "b": 2},
    '{# first\n"a": 1 /* {one} */}': {"a": 1},
    '{"a": "http://x/#y"}': {"a": "http://x/#y"},
    '{"a": .5, "b": +3}': {"a": 0.5, "b": 3},
    '{"a": "x\ny"}': {"a": "x\ny"},
    "{'a': 'x\ny\t'}": {"a": "x\ny\t"},
    r'{"a": "\d+\.x"}': {"a": r"\d+\.x"},
    "{'a': '</tool_call>'}": {"a": "</tool_call>"},
    "{'a': '\\x41\\u0042'}": {"a": "AB"},
    '{"a": NaN, "b": -Infinity}': {"a": "NaN", "b": "-Infinity"},
    "{'a': {'b': [None, {}, [], ''],},}": {"a": {"b": [None, {}, [], ""]}},
}
UNCLEAR = [
    "{'a': 'it's'}",
    '{"a": 1, , "b": 2}',
    '{"a": x}',
    '{"a": undefined}',
    '{"a": 1 2}',
    '{"a" "b"}',
    "{'a': '\\a'}",
    '{"a": 007}',
    '{"a": 1_000}',
    "{,}",
    "{1: 2}",
    "{it's}",
    '{"a": `x`}',
]
PYTHON = ["{'a': '\\a'}", '{"a": 1_000}']  # read as what they are in Python where an object is due


def whole(text):
    result = parse_every_way(text, tools=TOOLS)
    streamed = parse_with_deltas(list(text), tools=TOOLS)
    del streamed["pieces"]
    assert streamed == result
    return result


@pytest.mark.parametrize("text", READ)
def test_what_is_clear_is_read(text):
    assert json.loads(as_json(text, keep_no_numbers=True)) == READ[text]
    for call in (
        f'<tool_call>\n{{"name": "f", "arguments": {text}}}\n</tool_call>',
        f"<tool_call>\n{{'name': 'f', 'arguments': {text},}}\n</tool_call>",
        f"<tool_call>\n```json\n{{'name': 'f', 'arguments': {text}}}\n```\n</tool_call>",
        f"<tool_call>\n[{{'name': 'f', 'arguments': {text}}},]\n</tool_call>",
        f"<tool_call>\n<function=f>\n{text}\n</function>\n</tool_call>",
        f"<tool_call>\n<function=f>\n``` json\n{text}\n```\n</function>\n</tool_call>",
        f"<function=f>{text}</function>",
    ):
        result = whole(f"Sure.\n\n{call}\nmore")
        assert result == {"content": "Sure.\n\nmore", "reasoning": "", "calls": [("f", READ[text])], "partial": ""}


@pytest.mark.parametrize("text", [text for text in READ if "NaN" not in text])
def test_a_value_of_an_object_is_read_in_the_same_way(text):
    for value in (text, f"```json\n{text}\n```", f"```\n{text}\n```"):
        assert whole(call_text("f", o=value))["calls"] == [("f", {"o": READ[text]})]
        assert whole(call_text("f", a=value))["calls"] == [("f", {"a": value})]


@pytest.mark.parametrize("text", [*UNCLEAR, '{"a": NaN}'])
def test_what_is_not_clear_stays_as_it_is(text):
    with pytest.raises(ValueError, match=r"\S"):
        json.loads(as_json(text))
    if text not in PYTHON:
        assert whole(call_text("f", o=text))["calls"] == [("f", {"o": text})]


@pytest.mark.parametrize("text", UNCLEAR)
def test_a_call_that_is_not_clear_is_text(text):
    call = f'<tool_call>\n{{"name": "f", "arguments": {text}}}\n</tool_call>'
    assert whole(call) == {"content": call, "reasoning": "", "calls": [], "partial": ""}


def test_a_fence_in_a_wrapper_that_holds_no_call_is_text():
    for text in ("<tool_call>\n```\nx\n```\n</tool_call>", "<tool_call>\n```json\n{}\n```\n", "<tool_call>\n`f`"):
        assert whole(text) == {"content": text, "reasoning": "", "calls": [], "partial": ""}


@pytest.mark.parametrize("number", ["3", "-3", "0.5", "1e3", "1.5E-3", "+3", ".5", "-.5", "5.", "5.e2", "+.5"])
def test_numbers(number):
    assert json.loads(json_number(number)) == float(number)


@pytest.mark.parametrize(
    "text", ["007", "1_000", "1,000", "0x10", "nan", "inf", "", ".", "+", "e5", "1e", "٣", "５", "1 "]
)
def test_no_numbers(text):
    assert json_number(text) is None


@settings(deadline=None, max_examples=200)
@given(json_values.filter(lambda value: isinstance(value, (list, dict))), st.booleans())
def test_json_and_what_python_prints_of_it_come_back(value, keep):
    assert json.loads(as_json(json.dumps(value), keep_no_numbers=keep)) == value
    assert json.loads(as_json(json.dumps(value, ensure_ascii=False, indent=1), keep_no_numbers=keep)) == value
    try:
        read = json.loads(as_json(repr(value), keep_no_numbers=keep))
    except ValueError:
        assert "\\U" in repr(value) or "\\x" in repr(value)
    else:
        assert read == value
