"""Calls in a thinking block: a draft is no call, whatever follows it; the turn's last words are one."""

import pytest

from lily.chat.argument_values import ToolSchemas
from lily.chat.events import ReasoningDelta
from lily.chat.output_parser import OutputParser
from parsing import call_text, parse_every_way, parse_with_deltas, tool

TOOLS = [tool("bash", ["command"], command={"type": "string"}), tool("now")]
REMOVE, LIST = call_text("bash", command="rm -rf build"), call_text("bash", command="ls")
REMOVED, LISTED = ("bash", {"command": "rm -rf build"}), ("bash", {"command": "ls"})
BARE = REMOVE.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>")


def parsed(text, **options):
    result = parse_every_way(text, reasoning=True, tools=TOOLS, **options)
    streamed = parse_with_deltas(list(text), reasoning=True, tools=TOOLS, **options)
    del streamed["pieces"]
    assert streamed == result
    return result


@pytest.mark.parametrize("draft", [REMOVE, BARE, REMOVE + "\n" + LIST, '<tool_call>\n{"name": "now"}\n</tool_call>'])
@pytest.mark.parametrize("before", ["I could run\n\n", "", "I could run "])
@pytest.mark.parametrize("after", ["\nNo, that is dangerous.\n", "", "\n\n"])
def test_a_draft_with_an_answer_behind_it_is_reasoning(draft, before, after):
    result = parsed(f"{before}{draft}{after}</think>\n\nShall I delete build?")
    assert result["calls"] == []
    assert result["content"] == "Shall I delete build?"
    assert result["reasoning"] == (before + draft + after).strip()


def test_nothing_of_a_draft_is_streamed_as_a_call():
    parser = OutputParser(reasoning=True, tools=ToolSchemas(TOOLS), call_deltas=True)
    pieces = [piece for character in f"Run\n\n{REMOVE}\n" for piece in parser.feed(character)]
    assert "".join(piece.text for piece in pieces) == "Run"
    pieces = [piece for character in "No." for piece in parser.feed(character)]
    assert all(isinstance(piece, ReasoningDelta) for piece in pieces)
    assert "".join(piece.text for piece in pieces) == f"\n\n{REMOVE}\nNo."


@pytest.mark.parametrize("after", ["\nNo!\n", "\n", ""])
def test_only_what_is_called_outside_counts_if_something_is(after):
    draft = f"Run\n\n{REMOVE}{after}</think>\n\n"
    assert parsed(draft + LIST)["calls"] == [LISTED]
    assert parsed(draft + REMOVE)["calls"] == [REMOVED]
    assert parsed(f"{draft}{REMOVE}\n{REMOVE}")["calls"] == [REMOVED, REMOVED]
    assert parsed(f"{draft}I list.\n\n{LIST}\n{REMOVE}")["calls"] == [LISTED, REMOVED]
    assert parsed(draft + LIST)["reasoning"] == f"Run\n\n{REMOVE}{after}".strip()


@pytest.mark.parametrize("call", [REMOVE, BARE])
@pytest.mark.parametrize("end", ["", "\n", "\n</think>", "</think>\n\n"])
def test_a_turn_that_ends_with_a_call_while_thinking_makes_it(call, end):
    expected = {"content": "", "reasoning": "plan...", "calls": [REMOVED], "partial": ""}
    assert parsed(f"plan...\n\n{call}{end}") == expected


def test_the_calls_at_the_end_of_the_thinking_are_made_and_no_earlier_ones():
    text = f"First\n{REMOVE}\nNo.\n"
    result = parsed(f"{text}{LIST}\n{call_text('now')}")
    assert result["calls"] == [LISTED, ("now", {})]
    assert result["reasoning"] == text.strip()


@pytest.mark.parametrize("end", ["\nNo.", "\nI wait for the result.\n"])
def test_text_behind_a_draft_makes_it_one_even_if_the_turn_ends_there(end):
    assert parsed(f"Run {REMOVE}{end}") == {
        "content": "",
        "reasoning": f"Run {REMOVE}{end}",
        "calls": [],
        "partial": "",
    }


def test_a_turn_that_is_cut_off_makes_no_call_of_its_thinking():
    for end in range(len(REMOVE) + 1):
        text = f"Run\n\n{REMOVE[:end]}"
        assert parsed(text, truncated=True) == {"content": "", "reasoning": text, "calls": [], "partial": ""}


def test_a_draft_that_is_not_complete_is_none():
    for end in range(1, len(REMOVE) - len("</function>\n</tool_call>")):
        answer = parsed(f"Run {REMOVE[:end]}</think>\n\nShall I?")
        assert (answer["calls"], answer["content"]) == ([], "Shall I?")
        assert answer["reasoning"] == f"Run {REMOVE[:end]}".strip()
        assert parsed(f"Run {REMOVE[:end]}")["calls"] == []


def test_a_call_behind_a_draft_that_was_given_up():
    text = "Run\n<tool_call>\n<function=bash>\n<parameter=command>\nrm, no:\n"
    result = parsed(text + LIST)
    assert result["calls"] == [LISTED]
    assert result["reasoning"] == text.strip()


def in_content(text):
    result = parse_every_way(text, reasoning=False, tools=TOOLS)
    streamed = parse_with_deltas(list(text), reasoning=False, tools=TOOLS)
    del streamed["pieces"]
    assert streamed == result
    return result


@pytest.mark.parametrize("draft", [REMOVE, BARE, REMOVE + "\n" + LIST])
@pytest.mark.parametrize("closed", ["\n</think>", ""])
def test_a_thinking_block_behind_text_drafts_too(draft, closed):
    text = f"Let me see.\n\n<think>\nMaybe\n{draft}\nNo, too risky.{closed}\n\nShall I delete it?"
    result = in_content(text)
    assert result["calls"] == []
    assert result["content"] == text


def test_calls_behind_such_a_block_or_at_its_end_are_made():
    head = "Let me see.\n\n<think>\nMaybe\n"
    behind = in_content(f"{head}{REMOVE}\nNo.\n</think>\n\n{LIST}")
    assert behind["calls"] == [LISTED]
    assert behind["content"] == f"{head}{REMOVE}\nNo.\n</think>"
    assert in_content(f"{head}{LIST}")["calls"] == [LISTED]
    assert in_content(f"The `<think>` tag.\n\n{LIST}\nThat was it.")["calls"] == [LISTED]
