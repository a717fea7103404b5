"""What a conversation's history holds is taken as it is: it is there already, and a client cannot change it."""

import itertools

import pytest

from lily import Sampling
from lily.errors import InvalidArgumentError, TemplateError

USER = {"role": "user", "content": "Hi"}
MALFORMED = [
    '{"value": ',
    "[]",
    '"x"',
    "null",
    "7",
    "",
    "{'a': 1}",
    None,
    [],
    7,
    "x",
    True,
    '{"a": "\\ud800"}',
    "\ud800",
]


def history(*messages):
    return [USER, *messages, USER]


def call(arguments, name="f", call_id="1"):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def answers(model, messages):
    """Both doors of the library, and the prompt's text."""
    chat = model.chat(messages=messages, thinking=False, sampling=Sampling.greedy())
    assert chat.ask(max_tokens=2).done.usage.completion_tokens in (1, 2)
    return model.tokenizer.decode(model.render_chat(messages, enable_thinking=False)), chat


@pytest.mark.parametrize("arguments", MALFORMED)
def test_malformed_arguments(model, arguments):
    messages = history(
        {"role": "assistant", "content": None, "tool_calls": [call(arguments)]},
        {"role": "tool", "tool_call_id": "1", "content": None},
    )
    text, chat = answers(model, messages)
    assert text.count("<tool_call>") == 1 and "<tool_response>\n\n</tool_response>" in text
    if isinstance(arguments, str) and arguments not in ("", "null") and "ud800" not in ascii(arguments):
        assert f"\n{arguments}\n</parameter>" in text
    assert chat.messages[: len(messages)] == messages  # as the caller gave them


def test_the_chat_and_render_chat_agree(model):
    for first, second in itertools.pairwise(MALFORMED):
        messages = history({"role": "assistant", "content": "a", "tool_calls": [call(first), call(second)]})
        _, chat = answers(model, messages)
        ids = model.render_chat(messages, enable_thinking=False)
        assert chat.session.tokens[: len(ids)] == ids


def test_lone_surrogates_become_replacement_characters(model):
    bad = "a\ud800b\udfff"
    messages = [
        {"role": "system", "content": bad},
        {"role": "user", "content": [{"type": "text", "text": bad}]},
        {"role": "assistant", "content": bad, "reasoning_content": bad, "tool_calls": [call({bad: [bad]}, bad)]},
        {"role": "tool", "tool_call_id": "1", "content": bad},
        {"role": "user", "content": f"{bad}\ud83d\ude00"},
    ]
    text, _ = answers(model, messages)
    assert "a\ufffdb\ufffd\U0001f600" in text  # two halves that belong together are a character
    assert text.count("a\ufffdb\ufffd") == 8
    tools = [{"name": "f", "description": bad}]
    assert "a\ufffdb\ufffd" in model.tokenizer.decode(model.render_chat(messages, tools=tools))


@pytest.mark.parametrize(
    "empty",
    [{"content": ""}, {"content": None}, {}, {"content": []}, {"content": [{"type": "text", "text": ""}]}],
)
@pytest.mark.parametrize("count", [1, 2])
def test_empty_answers_at_the_end_are_dropped(model, empty, count):
    answer = {"role": "assistant", **empty}
    text, _ = answers(model, [USER, *[answer] * count])
    assert text == answers(model, [USER])[0]
    whole = model.tokenizer.decode(model.render_chat([USER, answer], add_generation_prompt=False))
    assert whole.count("<|im_start|>assistant") == 1


def test_answers_that_say_something_are_not_dropped(model):
    for answer in ({"content": "a"}, {"reasoning_content": "r"}, {"tool_calls": [call({})]}):
        messages = [USER, {"role": "assistant", **answer}]
        with pytest.raises(InvalidArgumentError, match="ends with an answer"):
            model.chat(messages=messages).ask()


def test_what_is_no_history_is_still_refused(model):
    for messages in (
        [{"role": "user", "content": None}],
        history({"role": "assistant", "tool_calls": "x"}),
        history({"role": "assistant", "tool_calls": ["x"]}),
        [{"role": 5, "content": "x"}],
    ):
        with pytest.raises(TemplateError, match="message"):
            model.chat(messages=messages).ask()
