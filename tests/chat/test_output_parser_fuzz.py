"""Fuzz of the output parser: it never fails, cuts do not matter, and what the template writes reads back."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz.call_texts import TYPES, cuts, json_values, schemas, texts
from lily.chat.argument_values import convert
from lily.text import ChatTemplate
from parsing import parse, parse_with_deltas, pieces_of, tool

SCHEMA = {"n": {"type": "integer"}, "o": {"type": "object"}, "s": {"type": "string"}}
TOOLS = [tool("f", ["n"], **SCHEMA), tool("g")]
fast = settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow])


def is_subsequence(part, text):
    rest = iter(text)
    return all(character in rest for character in part)


@fast
@given(texts, cuts, st.booleans(), st.booleans(), st.booleans())
def test_cuts_do_not_matter_and_nothing_fails(text, borders, reasoning, with_tools, truncated):
    options = {"reasoning": reasoning, "tools": TOOLS if with_tools else None, "truncated": truncated}
    whole = parse([text], **options)
    assert parse(pieces_of(text, borders), **options) == whole
    assert parse(list(text), **options) == whole
    if with_tools:
        for pieces in ([text], pieces_of(text, borders), list(text)):
            streamed = parse_with_deltas(pieces, **options)
            del streamed["pieces"]
            assert streamed == whole
    for _, arguments in whole["calls"]:
        assert json.loads(json.dumps(arguments)) == arguments
    assert "</think>" not in whole["reasoning"]
    if not whole["calls"] and not whole["partial"] and not reasoning and "think>" not in text:
        assert whole["content"] == text
    kept = whole["reasoning"] + whole["content"]
    assert is_subsequence(kept, text)


def _schema_of(value):
    return {"type": "null"} if value is None else {"type": TYPES[type(value)]}


@settings(fast, max_examples=200)
@given(
    st.lists(st.dictionaries(st.sampled_from(["a", "b", "c"]), json_values, max_size=3), min_size=1, max_size=3), cuts
)
def test_what_the_template_writes_reads_back(template_text, calls, borders):
    tools = [tool(f"t{at}", **{key: _schema_of(value) for key, value in call.items()}) for at, call in enumerate(calls)]
    message = {
        "role": "assistant",
        "content": "C",
        "reasoning_content": "R",
        "tool_calls": [{"function": {"name": f"t{at}", "arguments": call}} for at, call in enumerate(calls)],
    }
    template = ChatTemplate(template_text)
    prompt = template.render([{"role": "user", "content": "A"}], tools=tools)
    text = template.render([{"role": "user", "content": "A"}, message], tools=tools, add_generation_prompt=False)
    output = text[len(prompt) :].removesuffix("<|im_end|>\n")
    result = parse(pieces_of(output, borders), reasoning=True, tools=tools)
    assert result["content"] == "C"
    assert result["reasoning"] == "R"
    assert result["calls"] == [(f"t{at}", call) for at, call in enumerate(calls)]
    assert parse_with_deltas(pieces_of(output, borders), reasoning=True, tools=tools)["calls"] == result["calls"]


@pytest.fixture(scope="module")
def template_text(tiny):
    return (tiny / "chat_template.jinja").read_text(encoding="utf-8")


@fast
@given(st.one_of(texts, json_values.map(json.dumps), st.text(max_size=20)), schemas, schemas)
def test_conversion_never_fails(text, schema, referred):
    root = {"$defs": {"x": referred}, "anyOf": [{"$ref": "#"}]}
    value = convert(text, schema, root)
    json.dumps(value, ensure_ascii=False).encode()
    assert value == convert(text, schema, root)
