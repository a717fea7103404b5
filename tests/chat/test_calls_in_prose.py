"""Text about calls is text, with every character of it; calls stand where the chat template has them."""

import pytest

from parsing import call_text, parse_every_way, parse_with_deltas, tool

TOOLS = [tool("f", ["a"], a={"type": "string"}), tool("now")]
CALL = call_text("f", a="1")
BARE = CALL.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>")
MADE = ("f", {"a": "1"})
INDENTED = CALL.replace("\n", "\n    ")


def parsed(text, **options):
    result = parse_every_way(text, tools=TOOLS, **options)
    streamed = parse_with_deltas(list(text), tools=TOOLS, **options)
    del streamed["pieces"]
    assert streamed == result
    return result


PROSE = [
    "Use `<function=f>` to call it.",
    "Use <function=f> to call it.",
    "The `<tool_call>` tag opens a call and `</tool_call>` closes it.",
    "The <tool_call> tag opens a call and </tool_call> closes it, as </function> and </parameter> do.",
    "<tool_call> opens a call.\n</tool_call> closes it.\n",
    "<tool_call>\nopens a call.",
    "<function=f> is the function.\n<function=f>\nis, too. </function>",
    "<tool_call> <function=f> opens a call, </function> closes it",
    "<tool_call>\n<function=f>",
    "<tool_call>\n<function=f></function> is how it is written",
    "<function=now></function> has no parameters.",
    f"Inline: `{BARE}`.",
    f"Inline: `` {CALL} `` with two backticks.",
    f"``` {CALL} ``` is inline, too.",
    f"A span `over\n{CALL}` lines",
    f"The form is {CALL} as you see.",
    f"Look: {BARE}\nand more",
    f"Look: {BARE}",
    f"Example:\n\n    {INDENTED}",
    f"Example:\n\n    {INDENTED}\n\nand more",
    f"> {CALL.replace(chr(10), chr(10) + '> ')}",
    "<tool_call>\n{name: f}\n</tool_call>",
    '<tool_call>\n{"name": <name>, "arguments": <object>}\n</tool_call>',
    '<tool_call>\n{"value": 1}\n</tool_call>',
    '<tool_call>\n{"name": "f"',
    'See <tool_call>{"name": "f", "arguments": {}}</tool_call>',
    "<tool_",
    "a < b, <fun",
]


@pytest.mark.parametrize("text", PROSE)
def test_prose_about_calls_is_text(text):
    assert parsed(text) == {"content": text, "reasoning": "", "calls": [], "partial": ""}


@pytest.mark.parametrize(
    "call", [CALL, BARE, f"x\n{CALL}\ny", f"{CALL}\n\n{CALL}", '<tool_call>\n{"name": "f"}\n</tool_call>']
)
@pytest.mark.parametrize(
    ("opening", "closing"),
    [
        ("```", "```"),
        ("~~~", "~~~"),
        ("```xml", "```"),
        ("~~~ xml `a`", "~~~~"),
        ("````", "````"),
        ("````\n```", "```\n````"),
        ("~~~\n```", "~~~"),
        ("   ```", "   ```"),
        ("1. Like\n\n   ```", "   ```"),
        ("- ```", "  ```"),
        ("> ```", "> ```"),
        ("```", "`````  "),
        ("```\n```python", "```"),
        ("\t```", "\t```"),
    ],
)
@pytest.mark.parametrize("after", ["", "\n", "\nIs that clear?"])
def test_a_call_in_a_fence_is_text(call, opening, closing, after):
    text = f"Like this:\n\n{opening}\n{call}\n{closing}{after}"
    assert parsed(text) == {"content": text, "reasoning": "", "calls": [], "partial": ""}


@pytest.mark.parametrize(
    "text",
    [
        "```\nx\n```\n\n",
        "````\n```\n````\n",
        "~~~\n```\n~~~\n",
        "``` is `inline` ``` code\n",
        "`a` and ``b`` and \\`\n",
        "An unmatched ` here.\n\n",
        f"```\n{CALL}\n```\n\n",
        "Use `<tool_call>`.\n",
        "~~~~~ x\n~~~\n~~~~~\n",
        "a ~~~ b\n",
    ],
)
def test_a_call_behind_code_is_a_call(text):
    assert parsed(text + CALL) == {"content": text.rstrip(), "reasoning": "", "calls": [MADE], "partial": ""}
    assert parsed(f"{text}{CALL}\n\nmore")["calls"] == [MADE]


@pytest.mark.parametrize("text", ["```python\nx = 1\n\n", "It is 5` tall\n", "Sure.", "Sure: ", "````\n```\n"])
def test_a_call_in_a_doubtful_place_counts_if_the_turn_ends_with_it(text):
    for end in ("", "\n"):
        result = parsed(f"{text}{CALL}\n{CALL}{end}")
        assert result == {"content": text.rstrip(), "reasoning": "", "calls": [MADE, MADE], "partial": ""}
        assert parsed(f"{text}{CALL}{end}", truncated=True)["content"].strip() == f"{text}{CALL}".strip()
        assert parsed(text + CALL.replace("=f>", "=g>"))["calls"] == []
    whole = f"{text}{CALL}\nand more"
    assert parsed(whole) == {"content": whole, "reasoning": "", "calls": [], "partial": ""}


@pytest.mark.parametrize("text", ["", "Sure.\n\n", "Sure.\n", "Sure.\r\n", "Sure.\n  "])
def test_a_call_on_a_line_of_its_own_is_a_call(text):
    expected = {"content": text.strip(), "reasoning": "", "calls": [MADE], "partial": ""}
    assert parsed(text + CALL) == expected
    assert parsed(text + BARE) == expected
    assert parsed(text + CALL.replace("\n", "\r\n")) == expected
    assert parsed(f"{text}{CALL}\nmore")["calls"] == [MADE]


def test_without_tools_every_call_is_text():
    for tools in (None, []):
        for text in (CALL, BARE, f"a\n\n{CALL}\n", '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'):
            result = parse_every_way(text, tools=tools)
            assert result == {"content": text, "reasoning": "", "calls": [], "partial": ""}


UNDECLARED = CALL.replace("=f>", "=g>")


@pytest.mark.parametrize("call", [UNDECLARED, '<tool_call>\n{"name": "g", "arguments": {"a": "1"}}\n</tool_call>'])
def test_a_call_of_an_undeclared_tool_counts_if_the_turn_ends_with_it(call):
    """So that the model can be told; with prose behind it is an example."""
    made = ("g", {"a": "1"})
    for before in ("", "Sure.\n\n"):
        for after in ("", "\n"):
            result = parsed(before + call + after)
            assert result == {"content": before.strip(), "reasoning": "", "calls": [made], "partial": ""}
        for after in ("\nThis is the form.", " is the form", "\n\n- a\n", "\n</think> x"):
            text = before + call + after
            assert parsed(text) == {"content": text, "reasoning": "", "calls": [], "partial": ""}
        assert parsed(before + call, truncated=True)["calls"] == []
        assert parsed(f"{before}{call}\n{CALL}")["calls"] == [made, MADE]
        assert parsed(f"{before}{call}\n{CALL}\nmore")["calls"] == [made, MADE]
        assert parsed(f"{before}{CALL}\n{call}")["calls"] == [MADE, made]
        result = parsed(f"{before}{CALL}\n{call}\nmore")
        assert (result["calls"], result["content"]) == ([MADE], f"{before}{call}\nmore")


@pytest.mark.parametrize("item", ["1. Look:\n\n   ", "- Look:\n  ", "10) a\n11) b\n\n    c\n   ", "> 1. a\n\n  "])
def test_a_call_in_an_item_of_a_list_counts_if_the_turn_ends_with_it(item):
    call = CALL.replace("\n", "\n" + item.rpartition("\n")[2])
    text = f"{item}{call}\n\nand so on"
    assert parsed(text) == {"content": text, "reasoning": "", "calls": [], "partial": ""}
    result = parsed(item + call)
    assert [name for name, _ in result["calls"]] == ["f"]
    assert result["content"] == item.strip()


def test_a_call_behind_a_list_is_a_call():
    for text in ("1. a\n2. b\n\n", "- a\n", "- a\n\nSo:\n  "):
        assert parsed(f"{text}{CALL}\nmore")["calls"] == [MADE]


def test_tags_of_thinking_in_code_are_text():
    text = "The `</think>` tag.\n\n```\n<think>\na\n</think>\n```\n"
    assert parsed(text)["content"] == text


def test_cut_off_text_is_lost_nowhere():
    for text in PROSE:
        for end in range(1, len(text)):
            result = parsed(text[:end], truncated=True)
            if text[:end].rstrip().endswith(("<function=f></function>", "<function=now></function>")):  # this is a call
                continue
            assert result["calls"] == []
            assert text[:end].startswith(result["content"])
            rest = text[len(result["content"]) : end]
            assert rest.removesuffix(result["partial"]).strip() in ("", "<tool_call>")
