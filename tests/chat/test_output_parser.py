"""The output parser on well-formed and damaged answers: reasoning, content and tool calls, however they are cut."""

import json

import pytest

from lily.chat.output_parser import OutputParser, thinking_is_open
from lily.errors import InvalidArgumentError
from parsing import call_text, parse, parse_every_way, parse_with_deltas, tool

CALENDAR = tool("events", ["day"], day={"type": "integer"}, note={"type": "string"}, extra={"type": "object"})
WRITE = tool("write_file", ["path", "text"], path={"type": "string"}, text={"type": "string"})
TOOLS = [CALENDAR, WRITE]


@pytest.mark.parametrize(
    ("value", "expected"),
    [("2026-01-15", "2026-01-15"), ("140.0", 140), ("-3.0", -3), ("140.5", 140.5), ("7", 7), ("soon", "soon")],
)
def test_call_is_kept_whatever_its_integer_is(value, expected):
    result = parse_every_way(call_text("events", day=value), tools=TOOLS)
    assert result["calls"] == [("events", {"day": expected})]
    assert type(result["calls"][0][1]["day"]) is type(expected)
    assert result["content"] == ""


def test_code_for_an_object_parameter_stays_text():
    code = "def f(x):\n    if x < 3 and x > 1:\n        return {'a': [x]}\n" * 70 + "# </function> is a tag"
    assert len(code) > 3900
    assert parse([call_text("events", day=1, extra=code)], tools=TOOLS)["calls"] == [
        ("events", {"day": 1, "extra": code})
    ]
    assert parse(list(call_text("events", day=1, extra=code)), tools=TOOLS)["calls"][0][1]["extra"] == code


def test_bare_function_element_of_a_known_tool_is_a_call():
    text = "<function=events>\n<parameter=day>\n3\n</parameter>\n</function>"
    assert parse_every_way(text, tools=TOOLS)["calls"] == [("events", {"day": 3})]
    result = parse_every_way("Look:\n" + text + "\nand more", tools=TOOLS)
    assert result["calls"] == [("events", {"day": 3})]
    assert result["content"] == "Look:\nand more"


def test_bare_function_element_of_an_unknown_tool_is_content():
    text = "<function=other>\n<parameter=day>\n3\n</parameter>\n</function>"
    assert parse_every_way(text, tools=TOOLS) == {"content": text, "reasoning": "", "calls": [], "partial": ""}


def test_without_tools_tags_of_calls_are_text():
    text = "The format is " + call_text("f", a="1") + " as you see."
    assert parse_every_way(text)["content"] == text


@pytest.mark.parametrize("text", ["plan...", "plan...\n\n", "plan...\n"])
def test_call_inside_an_unclosed_thinking_block(text):
    result = parse_every_way(text + call_text("events", day=2), reasoning=True, tools=TOOLS)
    assert result == {"content": "", "reasoning": "plan...", "calls": [("events", {"day": 2})], "partial": ""}


def test_talking_about_calls_while_thinking_is_thinking():
    text = "I could use <tool_call> or <tool_call>\n<function=unknown> here.</think>\n\nDone."
    result = parse_every_way(text, reasoning=True, tools=TOOLS)
    assert result["calls"] == []
    assert result["content"] == "Done."
    assert result["reasoning"] == text.split("</think>")[0]


def test_call_drafted_while_thinking_and_made_afterwards_is_one_call():
    text = (
        "So "
        + call_text("events", day=2)
        + "\n</think>\n\n"
        + call_text("events", day=2)
        + "\n"
        + call_text("events", day=3)
    )
    result = parse_every_way(text, reasoning=True, tools=TOOLS)
    assert result["calls"] == [("events", {"day": 2}), ("events", {"day": 3})]


MALFORMED = [
    "<tool_call>\n<function=events>\n<parameter=day>\n5\n</parameter>\n</function>",
    "<tool_call>\n<function=events>\n<parameter=day>\n5\n</parameter>\n",
    "<tool_call>\n<function=events>\n<parameter=day>\n5\n",
    "<tool_call>\n<function=events>\n<parameter=day>\n5",
    "<tool_call>\n<function=events>\n<parameter=day>\n5\n</param",
    "<tool_call>\n<function=events>\n<parameter=day>\n5\n</tool_call>",
    "<tool_call>\n<function=events>\n<parameter=day>\n5\n</function>\n</tool_call>",
    "<tool_call>\n\n\n<function=events>\n\n<parameter=day>\n5\n</parameter>\n\n\n</function>\n\n</tool_call>\n\n",
    "<tool_call>\r\n<function=events>\r\n<parameter=day>\r\n5\r\n</parameter>\r\n</function>\r\n</tool_call>\r\n",
    "<tool_call><function=events><parameter=day>5</parameter></function></tool_call>",
    '<tool_call>\n{"name": "events", "arguments": {"day": 5}}\n</tool_call>',
    '<tool_call>{"name": "events", "arguments": "{\\"day\\": 5}"}',
    '<tool_call>\n{"name": "events", "parameters": {"day": 5}}}\n</tool_call>',
    '<tool_call>\n{"type": "function", "function": {"name": "events", "arguments": {"day": 5}}}\n</tool_call>',
    '<tool_call>\n<function=events>\n{"day": 5}\n</function>\n</tool_call>',
    "<tool_call>\n<tool_call>\n<function=events>\n<parameter=day>\n5\n</parameter>\n</function>\n</tool_call>",
    '<tool_call>\n<function="events">\n<parameter="day">\n5\n</parameter>\n</function>\n</tool_call>',
    "<function=events>\n<parameter=day>\n5\n</parameter>\n</function>\n</tool_call>",
    "<tool_call>\n<function=events>\n<parameter=day>\n5\n</parameter>\n</function>\n</function>\n</tool_call>",
]


@pytest.mark.parametrize("text", MALFORMED)
@pytest.mark.parametrize("before", ["", "Sure.\n\n"])
def test_malformed_calls_are_salvaged(text, before):
    result = parse_every_way(before + text, tools=TOOLS)
    assert result["calls"] == [("events", {"day": 5})]
    assert result["content"] == before.strip()


def test_left_out_closing_tag_of_a_parameter_before_the_next_one():
    parameters = "<parameter=path>\na.txt\n<parameter=text>\nhi\n</parameter>\n"
    text = f"<tool_call>\n<function=write_file>\n{parameters}</function>\n</tool_call>"
    assert parse_every_way(text, tools=TOOLS)["calls"] == [("write_file", {"path": "a.txt", "text": "hi"})]


@pytest.mark.parametrize(
    "value",
    [
        "  indented\n    more\n",
        "\nblank line first and last\n",
        "   ",
        "",
        "a </parameter> in the text",
        "call it with </tool_call> at the end",
        "<b>x</b> <function=f> <parameter=p> </function>",
        "tab\there, \u00e9\U0001f600, 1 < 2",
    ],
)
def test_one_newline_is_taken_off_each_end_of_a_value_and_no_more(value):
    text = call_text("write_file", path="p", text=value)
    assert parse_every_way(text, tools=TOOLS)["calls"] == [("write_file", {"path": "p", "text": value})]


def test_several_calls_with_text_between():
    text = (
        "A\n\n"
        + call_text("events", day=1)
        + "\n"
        + call_text("events", day=2)
        + "\nB\n\n"
        + call_text("events", day=3)
    )
    result = parse_every_way(text, tools=TOOLS)
    assert [arguments["day"] for _, arguments in result["calls"]] == [1, 2, 3]
    assert result["content"] == "A\n\nB"


def test_several_functions_in_one_element():
    one = "<function=events>\n<parameter=day>\n{}\n</parameter>\n</function>\n"
    result = parse_every_way(f"<tool_call>\n{one.format(1)}{one.format(2)}</tool_call>", tools=TOOLS)
    assert [arguments["day"] for _, arguments in result["calls"]] == [1, 2]


def test_unclosed_call_before_a_whole_one():
    text = "<tool_call>\n<function=events>\n<parameter=day>\n1\n</tool_call>\n" + call_text("events", day=2)
    assert [arguments["day"] for _, arguments in parse_every_way(text, tools=TOOLS)["calls"]] == [1, 2]


@pytest.mark.parametrize(
    "text", ["<tool_call>\nI cannot do that.\n</tool_call>", "<tool_call>I cannot do that.</tool_call>\n"]
)
def test_element_without_a_call_is_text(text):
    assert parse_every_way(text, tools=TOOLS) == {"content": text, "reasoning": "", "calls": [], "partial": ""}


@pytest.mark.parametrize(
    "end", range(1, len(call_text("write_file", path="p", text="long text")) - len("\n</tool_call>") - 1)
)
def test_a_call_that_the_token_limit_cuts_off_is_not_made(end):
    text = call_text("write_file", path="p", text="long text")[:end]
    result = parse_every_way(text, tools=TOOLS, truncated=True)
    assert result["calls"] == []
    assert result["content"] == ""
    assert result["partial"] in (text, text[len("<tool_call>\n") :]) or end < len("<tool_call>")


# -- reasoning -----------------------------------------------------------------------------------------------------


def test_truncated_thinking_is_all_reasoning():
    result = parse_every_way("so far and", reasoning=True, truncated=True)
    assert result == {"content": "", "reasoning": "so far and", "calls": [], "partial": ""}


@pytest.mark.parametrize(
    ("prompt", "is_open"),
    [
        ("<|im_start|>assistant\n<think>\n", True),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("<|im_start|>user\nwhat is <think>?<|im_end|>\n<|im_start|>assistant\n", False),
    ],
)
def test_start_state_comes_from_the_end_of_the_prompt(prompt, is_open):
    assert thinking_is_open(prompt) is is_open


@pytest.mark.parametrize("newlines", ["", "\n", "\n\n", "\r\n\r\n"])
def test_closing_tag_and_its_newlines_are_not_content(newlines):
    expected = {"content": "B", "reasoning": "r1\nr2", "calls": [], "partial": ""}
    assert parse_every_way(f"r1\nr2\n</think>{newlines}B", reasoning=True) == expected
    assert parse_every_way(f"<think>\nr1\nr2\n</think>{newlines}B", reasoning=True) == expected
    assert parse_every_way(f"<think>\nr1\nr2\n</think>{newlines}B") == expected


@pytest.mark.parametrize("text", ["</think>\nB", "\n\n</think>\n\nB", "</think>\r\n\r\nB", " </think>\n</think>\n\nB"])
def test_a_closing_tag_on_its_own_before_all_content_is_a_tag(text):
    assert parse_every_way(text)["content"] == "B"
    assert parse_every_way(f"r\n</think>\n{text}", reasoning=True) == {
        "content": "B",
        "reasoning": "r",
        "calls": [],
        "partial": "",
    }


@pytest.mark.parametrize(
    "text",
    [
        "A\n</think>\n\nB",
        "A </think> B",
        "A</think>",
        "</think> closes the block.",
        "</think> and <think>",
        "1. `x`\n2. </think>\n\n</think>\n\n",
        "</think>x",
        "A\n\n</think>",
    ],
)
def test_a_closing_tag_in_the_content_is_text(text):
    assert parse_every_way(text)["content"] == text
    assert parse_every_way(text, tools=TOOLS)["content"].strip() == text.strip()
    assert parse_every_way(f"r\n</think>\n\n{text}", reasoning=True)["content"] == text


def test_a_closing_tag_behind_a_call_is_no_text():
    for end in ("", "\n", "\n\n"):
        result = parse_every_way(f"A\n\n{call_text('events', day=1)}\n</think>{end}", tools=TOOLS)
        assert result == {"content": "A", "reasoning": "", "calls": [("events", {"day": 1})], "partial": ""}


@pytest.mark.parametrize("tag", ["<think>", "`<think>`", "a <think> b", "\n<think>\n"])
def test_thinking_ends_with_its_first_closing_tag(tag):
    text = f"The {tag} tag\n</think>\n\nB </think> C"
    result = parse_every_way(text, reasoning=True)
    assert result["content"] == "B </think> C"
    assert result["reasoning"] == f"The {tag} tag"


def test_empty_thinking():
    assert parse_every_way("\n</think>\n\nB", reasoning=True)["reasoning"] == ""


def test_history_as_the_template_writes_it_reads_back(template):
    arguments = {"day": 3, "note": "two\nlines", "extra": {"k": [1, None, True], "č": "ž"}}
    message = {
        "role": "assistant",
        "content": "I will.",
        "reasoning_content": "r1",
        "tool_calls": [{"function": {"name": "events", "arguments": json.dumps(arguments)}}],
    }
    prompt = template.render([{"role": "user", "content": "A"}], tools=TOOLS)
    text = template.render([{"role": "user", "content": "A"}, message], tools=TOOLS, add_generation_prompt=False)
    output = text[len(prompt) :].removesuffix("<|im_end|>\n")
    result = parse_every_way(output, reasoning=True, tools=TOOLS)
    assert result == {"content": "I will.", "reasoning": "r1", "calls": [("events", arguments)], "partial": ""}


def test_long_strings_of_calls_come_in_pieces():
    tools = [tool("write", text={"type": "string"}, mode={"type": "integer"}, choice={"enum": ["a", "b"]})]
    code = "def f():\n    return '<b> </a> \"x\"'\r\n\n" * 20 + "'</parameter> é😀\\"
    text = (
        f"<tool_call>\n<function=write>\n<parameter=mode>\n7\n</parameter>\n<parameter=text>\n{code}\n</parameter>\n"
        "<parameter=choice>\nb\n</parameter>\n</function>\n</tool_call>"
    )
    result = parse_with_deltas(list(text), tools=tools)
    assert result["calls"] == [("write", {"mode": 7, "text": code, "choice": "b"})]
    assert result["pieces"] > len(code) / 2
    cut = parse_with_deltas(list(text[:200]), tools=tools, truncated=True)
    assert cut["calls"] == []
    assert cut["pieces"] > 50
    assert cut["partial"].startswith("<function=write>")


@pytest.mark.parametrize(
    "wrong", [{"tools": True}, {"tools": []}, {"reasoning": "x"}, {"begun": [1]}, {"begun": True}, {"call_deltas": 2}]
)
def test_wrong_arguments(wrong):
    with pytest.raises(InvalidArgumentError, match=next(iter(wrong))):
        OutputParser(**{"reasoning": False, **wrong})
    with pytest.raises(InvalidArgumentError, match="prompt"):
        thinking_is_open(None)
