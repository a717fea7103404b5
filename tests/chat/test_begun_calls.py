"""Answers that go on with a beginning: calls and texts are those of the whole, wherever the beginning ends."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz.call_texts import cuts, texts
from lily.errors import InvalidArgumentError
from parsing import call_text, parse, parse_begun, tool

TOOLS = [tool("name_it", ["a"], a={"type": "string"}, b={"type": "integer"}), tool("now")]
CALL = call_text("name_it", a="x\n</b> </parameter> y", b=7)
ANSWERS = [
    f"Sure.\n\n{CALL}",
    f"{CALL}\n{call_text('now')}\n",
    f"Both:\n{CALL}\nand\n\n{CALL}\nmore",
    f"Like this: {CALL}",
    f"```\n{CALL}\n```\nIs that clear?",
    f"```\n{CALL}",
    '<tool_call>\n{"name": "name_it", "arguments": {"a": "1"}}\n</tool_call>',
    CALL.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>"),
    "Use `<tool_call>` or\n<tool_cup>.",
    call_text("other", a="1"),
    f"{call_text('other', a='1')}\nis how.",
]


@pytest.mark.parametrize("text", ANSWERS)
@pytest.mark.parametrize("truncated", [False, True])
def test_a_beginning_may_end_anywhere(text, truncated):
    whole = parse([text], tools=TOOLS, truncated=truncated)
    for border in range(len(text) + 1):
        assert parse_begun(text, border, tools=TOOLS, truncated=truncated) == whole


@pytest.mark.parametrize("thought", ["plan", f"Run\n\n{CALL}\nNo.", "", CALL])
@pytest.mark.parametrize("answer", ["\n</think>\n\nB", f"</think>\n\n{CALL}", ""])
def test_a_beginning_may_end_in_the_thinking(thought, answer):
    text = thought + answer
    whole = parse([text], reasoning=True, tools=TOOLS)
    for border in range(len(text) + 1):
        assert parse_begun(text, border, reasoning=True, tools=TOOLS) == whole


@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(texts, st.integers(0, 100), cuts, st.booleans(), st.booleans(), st.booleans())
def test_any_beginning(text, border, borders, reasoning, with_tools, truncated):
    options = {"reasoning": reasoning, "tools": TOOLS if with_tools else None, "truncated": truncated}
    whole = parse([text], **options)
    for at in {border, *borders}:
        assert parse_begun(text, min(at, len(text)), **options) == whole


def test_the_text_of_the_beginning_is_not_returned():
    result = parse(list("_name>` and more"), begun="Use `<function=x>` and `<tool", tools=TOOLS)
    assert result["content"] == "_name>` and more"
    assert parse(["p>"], begun="a <tool_c", tools=TOOLS)["content"] == "p>"


# -- with a model ----------------------------------------------------------------------------------------------------

BORDERS = [3, 12, 25, 35, 47, 50, 55, 70, len(CALL) - 20, len(CALL) - 12, len(CALL) - 5]


def begun_chat(model, content, **options):
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": content}]
    return model.chat(messages=messages, tools=TOOLS, thinking=False, continue_answer=True, max_tokens=200, **options)


@pytest.mark.parametrize("border", BORDERS)
@pytest.mark.parametrize("before", ["", "Sure.\n\n", "<think>\nplan\n</think>\n\n"])
def test_the_call_becomes_part_of_the_conversation(model, script, before, border):
    script(CALL[border:])
    with begun_chat(model, before + CALL[:border]) as chat:
        answer = chat.ask()
        (message,) = chat.messages[1:]
    (call,) = answer.tool_calls
    assert (call.name, call.arguments) == ("name_it", {"a": "x\n</b> </parameter> y", "b": 7})
    assert (answer.content, answer.reasoning, answer.finish_reason) == ("", "", "tool_calls")
    assert message["content"] == ("Sure." if before.startswith("Sure") else "")
    assert message.get("reasoning_content", "") == ("plan" if "plan" in before else "")
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == call.arguments


def test_a_beginning_that_holds_the_only_call_that_is_allowed(model, script):
    script("and more")
    with begun_chat(model, CALL, parallel_tool_calls=False) as chat:
        answer = chat.ask()
        (message,) = chat.messages[1:]
    assert (len(answer.tool_calls), answer.finish_reason, answer.done.usage.completion_tokens) == (1, "tool_calls", 0)
    assert len(message["tool_calls"]) == 1


@pytest.mark.parametrize("content", ["<tool_call>\n<function=na", "Sure.\n\n<tool_call>\n<function=name_it>\n", "x"])
def test_a_forced_call_goes_on(model, content):
    pytest.importorskip("llguidance")
    choice = {"type": "function", "function": {"name": "name_it"}}
    tools = [tool("name_it", ["b"], b={"enum": [1, 2]})]
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": content}]
    with model.chat(
        messages=messages, tools=tools, thinking=False, continue_answer=True, max_tokens=60, tool_choice=choice
    ) as chat:
        answer = chat.ask()
    assert [call.name for call in answer.tool_calls] == ["name_it"]
    assert answer.content == ""


@pytest.mark.parametrize("value", ["no number", "1.5", '{"b"'])
@pytest.mark.parametrize("rest", ["", " and more\n</parameter>\n</function>\n</tool_call>"])
def test_a_forced_call_that_began_with_a_value_that_does_not_fit(model, script, value, rest):
    pytest.importorskip("llguidance")
    tools = [tool("name_it", ["b"], b={"type": "integer"})]
    content = f"<tool_call>\n<function=name_it>\n<parameter=b>\n{value}{rest}"
    script("" if rest else "\n</parameter>\n</function>\n</tool_call>")
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": content}]
    with model.chat(
        messages=messages, tools=tools, thinking=False, continue_answer=True, max_tokens=60, tool_choice="required"
    ) as chat:
        answer = chat.ask()
    assert [call.name for call in answer.tool_calls] == ["name_it"]
    assert any("does not match its tool" in one for one in answer.done.warnings)


def test_content_with_a_closing_tag_stays_content_in_the_next_turn(model, script):
    script("A\n</think>\n\nB")
    with model.chat(thinking=False) as chat:
        chat.ask("x")
        assert chat.messages[-1]["content"] == "A\n</think>\n\nB"
        prompt = model.chat_template.render(chat.messages, enable_thinking=False)
        assert "A\n</think>\n\nB" in prompt
        with pytest.raises(InvalidArgumentError, match="send a message"):
            chat.ask()
