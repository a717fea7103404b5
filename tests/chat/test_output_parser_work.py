"""The parser's work grows with the length of the output, not with its square, on the most awkward ones as well."""

import sys
import time

import pytest

from lily.chat.argument_values import ToolSchemas
from lily.chat.output_parser import OutputParser
from parsing import tool

TOOLS = ToolSchemas([tool("f", text={"type": "string"}, path={"type": "string"}, list={"type": "array"}), tool("g")])
OPEN = "<tool_call>\n<function=f>\n<parameter=text>\n"
SHAPES = {
    "prose": ("", "The `quick` brown <b>fox</b>.\n\n"),
    "a long value": (OPEN, "The `quick` brown <b>fox</b>.\n\n"),
    "calls": ("", "<tool_call>\n<function=g>\n</function>\n</tool_call>\n"),
    "open calls": ("", OPEN),
    "calls that quote open calls": ("", OPEN + "<tool_call>\n<function=f>\n</parameter>\n</function>\n</tool_call>\n"),
    "quoted open parameters": ("", OPEN + "<tool_call>\n<function=f>\n<parameter=path>\n"),
    "drafts with text": ("", "x <tool_call>\n<function=g>\n</function>\n</tool_call>\nno\n"),
    "white space in a call": ("<tool_call>", "\n"),
    "white space behind a value": (OPEN + "x\n</parameter>", "\n"),
    "white space behind an opening parameter": (OPEN + "x\n<parameter=text>", " "),
    "closing parameters": (OPEN, "</parameter>\n"),
    "closing functions": (OPEN + "x\n</parameter>\n", "</function>\n"),
    "closing calls": (OPEN, "</function>\n</tool_call>\n"),
    "parameters without a close": (OPEN, "\n<parameter=path>\n"),
    "opening tags": ("", "<tool_call>"),
    "opening tags on lines": ("", "<tool_call>\n"),
    "opening tags in prose": ("x ", " <tool_call>"),
    "open JSON": ("", '<tool_call>\n{"name": "'),
    "open strings in JSON": ("", "<tool_call>\n{'"),
    "open strings of both kinds": ("", "<tool_call>[\",'"),
    "open comments": ("", "<tool_call>{/*"),
    "comments up to the end of the line": ("", "<tool_call>{#"),
    "a comment that goes on": ("<tool_call>\n{ //", "x"),
    "many quotes": ("<tool_call>\n['", "','"),
    "open arrays in values": ("", '<tool_call>\n<function=f>\n<parameter=list>\n["'),
    "quoted tags in an array": ('<tool_call>\n<function=f>\n<parameter=list>\n["', '<tool_call>\\n<function=f>", "'),
    "open fences in calls": ("", "<tool_call>\n```\n"),
    "white space behind a fence in a call": ("<tool_call>\n```\n", " "),
    "closing tags of thinking": ("", "</think>\n"),
    "spaces behind a closing tag of thinking": ("</think>", " "),
    "items of a list": ("", "- a\n  <tool_call>\n<function=g>\n</function>\n</tool_call>\n"),
    "calls of unknown tools": ("", "<tool_call>\n<function=h>\n</function>\n</tool_call>\n"),
    "stray text": ("<tool_call>\n<function=f>\n", "stray <parameter=x> text\n"),
    "an open fence": ("```\n", OPEN),
    "backticks": ("x", "`` ` <tool_call>\n"),
    "tildes": ("", "~"),
    "quotes": ("", "> "),
}


def parse(text, reasoning, step):
    parser = OutputParser(reasoning=reasoning, tools=TOOLS, call_deltas=True)
    for start in range(0, len(text), step):
        parser.feed(text[start : start + step])
    parser.finish()


def count_calls(text, reasoning, step):
    """Calls of functions, built-in ones included."""
    count = 0

    def note(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        parse(text, reasoning, step)
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("reasoning", "step"), [(False, 3), (False, 1 << 20), (True, 3)])
def test_ten_times_the_text_takes_ten_times_the_steps(shape, reasoning, step):
    head, unit = SHAPES[shape]
    short, long = (head + unit * (length // len(unit)) for length in (3_000, 30_000))
    assert count_calls(long, reasoning, step) < 15 * count_calls(short, reasoning, step)


@pytest.mark.parametrize("shape", SHAPES)
def test_thirty_times_the_text_does_not_take_nine_hundred_times_as_long(shape):
    head, unit = SHAPES[shape]
    seconds = []
    for length in (5_000, 150_000):
        text = head + unit * (length // len(unit))
        began = time.process_time()
        parse(text, False, 16)
        seconds.append(time.process_time() - began)
    assert seconds[1] < 300 * max(seconds[0], 0.003)
