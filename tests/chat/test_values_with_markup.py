"""Values that hold the tags of calls, and calls that lack some: each value comes back as it was written."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parsing import call_text, parse, parse_every_way, parse_with_deltas, pieces_of, tool

TEXT = {"type": "string"}
TOOLS = [tool("f", a=TEXT, b=TEXT, c=TEXT), tool("g", n={"type": "integer"})]
INNER = call_text("f", a="1", b="2")
BARE = INNER.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>")

VALUES = [
    "x\n</parameter>\n</function>\ny",
    "x\n</parameter>\n</function>",
    "</parameter>\n</function>\n</parameter>\n</function>",
    "</parameter>",
    "</function>",
    "</tool_call>",
    "x\n</tool_call>\ny",
    "x\n</function>\n</tool_call>\ny",
    "x\n</parameter>\n\n</function>\n\n\ny",
    "a </parameter> text\n<parameter=b>\nz",
    "x\n</parameter>\n<parameter=other>\ny",
    "x\n</parameter>\n<parameter=a>\ny",
    "<parameter=other>\nx\n</parameter>",
    "<parameter=b>\nx\n</parameter>",
    "<parameter=b>\nx\n</parameter>\n<parameter=c>\ny\n</parameter>",
    "x\n<parameter=b>\nx\n</parameter>\ny",
    "<parameter=a>\nx\n</parameter>\n<parameter=b>\ny\n</parameter>",
    "<parameter=b>x</parameter>",
    "<parameter=b>x</parameter>\n<parameter=c>y</parameter>",
    "pass it with <parameter=b> and </parameter>.",
    "Use\n<parameter=other>\nfor it",
    INNER,
    f"To call it:\n{INNER}\nSee?",
    f"{INNER}\n{INNER}",
    call_text("f", a=INNER, c=INNER),
    call_text("g", n=1),
    call_text("g"),
    call_text("unknown", x="1"),
    BARE,
    f"x\n{BARE}\n{BARE}\ny",
    "The <tool_call> tag, then\n<tool_call>\nand <function=f>",
    "<tool_call>\n<function=g>\nand so on",
    '<tool_call>\n{"name": "g", "arguments": {"n": 1}}\n</tool_call>',
    "<parameter=b>x",
    "<parameter=b> text\nmore",
    "<parameter=b></function>\ny",
    "x\n<parameter=b>y\n</parameter> z",
    "<function=g>",
    "see <function=g> <parameter=n> </function>",
    "```xml\n" + INNER + "\n```",
]


@pytest.mark.parametrize("value", VALUES)
def test_a_value_may_hold_every_tag(value):
    """Alone, first, in the middle and last; with a call behind it."""
    for arguments in ({"a": value}, {"a": value, "b": "B"}, {"c": "C", "a": value, "b": "B"}, {"b": "B", "a": value}):
        text = f"{call_text('f', **arguments)}\n{call_text('g', n=3)}"
        result = parse_every_way(text, tools=TOOLS)
        assert result == {
            "content": "",
            "reasoning": "",
            "calls": [("f", arguments), ("g", {"n": 3})],
            "partial": "",
        }
        streamed = parse_with_deltas(list(text), tools=TOOLS)
        assert streamed["calls"] == result["calls"]


@pytest.mark.parametrize("kind", ["object", "array", ["object", "null"], ["string", "array", "object"]])
def test_strings_in_an_array_or_object_may_hold_every_tag(kind):
    tools = [tool("f", a={"type": kind}, b=TEXT), tool("g", n={"type": "integer"})]
    for text in (
        *VALUES,
        "<tool_call><function=f>",
        "</parameter>\n</function>\n</tool_call>",
        "it's } ] \" \\",
        "<think>",
    ):
        value = [text, {"b": text}, []] if "array" in kind else {text: [text], "b": {}}
        for written in (json.dumps(value), json.dumps(value, indent=2, ensure_ascii=False)):
            output = f"{call_text('f', a=written, b='B')}\n{call_text('g', n=3)}"
            result = parse([output], tools=tools)
            assert result["calls"] == [("f", {"a": value, "b": "B"}), ("g", {"n": 3})]
            pieces = pieces_of(output, range(3, len(output), 5))
            assert parse(pieces, tools=tools) == result
            assert parse_with_deltas(pieces, tools=tools)["calls"] == result["calls"]
    broken = f"{call_text('f', a=json.dumps([INNER])[:-1], b='B')}\n{call_text('g', n=3)}"
    assert parse_every_way(broken, tools=tools)["calls"][-1] == ("g", {"n": 3})


def test_a_bare_function_may_quote_others():
    for value in (BARE, f"x\n{BARE}\ny", INNER, "x\n</parameter>\n</function>"):
        text = call_text("f", a=value, b="B").removeprefix("<tool_call>\n").removesuffix("\n</tool_call>")
        assert parse_every_way(text, tools=TOOLS)["calls"] == [("f", {"a": value, "b": "B"})]


def test_a_function_without_declared_parameters_takes_every_name():
    for parameters in ({}, {"properties": {"a": TEXT}, "additionalProperties": True}):
        function = {"name": "f", "parameters": {"type": "object", **parameters}}
        tools = [{"type": "function", "function": function}]
        assert parse_every_way(call_text("f", a="1", z="2"), tools=tools)["calls"] == [("f", {"a": "1", "z": "2"})]


JSON_CALLS = [
    '<function=f>{"a": "x </function> y"}</function>',
    '<tool_call>\n<function=f>\n{"a": "x </function> y"}\n</function>\n</tool_call>',
    '<tool_call>\n{"name": "f", "arguments": {"a": "x </function> y"}}\n</tool_call>',
    '<tool_call>\n[{"name": "f", "arguments": {"a": "x </function> y"}}]\n</tool_call>',
]


@pytest.mark.parametrize("text", JSON_CALLS)
@pytest.mark.parametrize(
    ("inner", "value"),
    [
        ("x </function> y", "x </function> y"),
        ("</tool_call>", "</tool_call>"),
        ("line\nline\t</tool_call>\n", "line\nline\t</tool_call>\n"),
        ('\\"}</function>\\\\', '"}</function>\\'),
        ("\\n<parameter=a>{[", "\n<parameter=a>{["),
    ],
)
def test_strings_of_json_calls_may_hold_tags_and_raw_newlines(text, inner, value):
    text = text.replace("x </function> y", inner)
    assert parse_every_way(text + "\nmore", tools=TOOLS)["calls"] == [("f", {"a": value})]


def test_json_behind_a_call_in_the_same_wrapper():
    text = call_text("g", n=1).replace("\n</tool_call>", '\n{"name": "g", "arguments": {"n": 2}}\n</tool_call>')
    assert parse_every_way(text, tools=TOOLS)["calls"] == [("g", {"n": 1}), ("g", {"n": 2})]
    both = '<tool_call>\n{"name": "g", "arguments": {"n": 1}}\n{"name": "g", "arguments": {"n": 2}}\n</tool_call>'
    assert parse_every_way(both, tools=TOOLS)["calls"] == [("g", {"n": 1}), ("g", {"n": 2})]


@pytest.mark.parametrize(
    "first",
    [
        "<tool_call>\n<function=f>\n<parameter=a>\n1\n",
        "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n",
        "<tool_call>\n<function=f>\n<parameter=a>\n1\n</function>\n",
        "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n",
        "<tool_call>\n<function=f>\n<parameter=a>\n1\n</tool_call>\n",
        "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</tool_call>\n",
        "<tool_call>\n<function=f>\n<parameter=a>\n1\n</function>\n</tool_call>\n",
        "<function=f>\n<parameter=a>\n1\n</parameter>\n",
        "<function=f>\n<parameter=a>\n1\n",
    ],
)
def test_a_call_without_closing_tags_before_the_next_call(first):
    result = parse_every_way(f"Both.\n\n{first}{call_text('g', n=2)}\n{call_text('g', n=3)}", tools=TOOLS)
    assert result["calls"] == [("f", {"a": "1"}), ("g", {"n": 2}), ("g", {"n": 3})]
    assert result["content"] == "Both."


@pytest.mark.parametrize("missing", [1, 2, 3])
def test_parameters_without_closing_tags(missing):
    parameters = [f"<parameter={name}>\n{name}1\n</parameter>\n" for name in "abc"]
    parameters[:missing] = [text.removesuffix("</parameter>\n") for text in parameters[:missing]]
    text = f"<tool_call>\n<function=f>\n{''.join(parameters)}</function>\n</tool_call>"
    assert parse_every_way(text, tools=TOOLS)["calls"] == [("f", {"a": "a1", "b": "b1", "c": "c1"})]


lines = st.sampled_from(
    ["text", "", "  indented", "a </parameter> b", "see <tool_call>", "`<function=f>`", "<", "{", "```"]
)
simple = st.sampled_from(["1", "two words", "two\nlines", ""])
quoted = st.builds(
    lambda name, arguments: call_text(name, **arguments),
    st.sampled_from(["f", "g", "unknown"]),
    st.dictionaries(st.sampled_from("abcx"), simple, max_size=3),
)
values = st.lists(st.one_of(lines, quoted, st.sampled_from(VALUES[16:20])), min_size=1, max_size=4).map("\n".join)


def test_what_follows_a_quoted_opening_tag_is_waited_for():
    for behind in ("<tool_call>", " <tool_call>", "  x", "<parameter=b>", "\n", "  \nx", ""):
        for head in ("", "<tool_call>\n"):
            text = f"{head}<function=f>\n<parameter=a>\n \n<parameter=a>{behind}</parameter>"
            parse_every_way(text, tools=TOOLS)
            parse_every_way(text + "\n</function>\n", tools=TOOLS)


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.dictionaries(st.sampled_from("abc"), values, min_size=1, max_size=3), min_size=1, max_size=3),
    st.lists(st.integers(0, 400), max_size=8),
)
def test_values_that_quote_whole_calls_come_back(calls, borders):
    text = "\n".join(call_text("f", **arguments) for arguments in calls)
    expected = [("f", arguments) for arguments in calls]
    assert parse(pieces_of(text, borders), tools=TOOLS)["calls"] == expected
    assert parse_with_deltas(pieces_of(text, borders), tools=TOOLS)["calls"] == expected
