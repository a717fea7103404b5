"""Tests of the chat template: exact text of lily-tiny's own, where it is found, and what it refuses."""

import json

import pytest
from conversations import ARGUMENTS, CONVERSATIONS, OPTIONS, TOOL, assistant, call, result, system, user

from lily.errors import TemplateError, TokenizerError
from lily.text import ChatTemplate

HEADER = "<|im_start|>assistant\n<think>\n"
TOOLS_TAIL = (
    "\n</tools>\n\nTo call one, answer with a block of this shape and write nothing after it:\n\n"
    "<tool_call>\n<function=NAME>\n<parameter=PARAMETER>\nvalue\n</parameter>\n</function>\n</tool_call>\n\n"
    "Give every required parameter. If no function fits, answer in plain words."
)


def turn(role, text):
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


@pytest.mark.parametrize(
    ("messages", "options", "expected"),
    [
        ([user(" Hi ")], {}, turn("user", "Hi") + HEADER),
        ([user("Hi")], {"add_generation_prompt": False}, turn("user", "Hi")),
        ([user("Hi")], {"enable_thinking": False}, turn("user", "Hi") + HEADER + "\n</think>\n\n"),
        ([system(" S\n"), user("Hi")], {}, turn("system", "S") + turn("user", "Hi") + HEADER),
        (
            CONVERSATIONS["two turns"],
            {},
            turn("user", "A") + turn("assistant", "B") + turn("user", "C") + HEADER,
        ),
        (
            CONVERSATIONS["two turns"],
            {"preserve_thinking": True},
            turn("user", "A") + turn("assistant", "<think>\nr1\n</think>\n\nB") + turn("user", "C") + HEADER,
        ),
        (
            [system("S"), user("A")],
            {"tools": [TOOL], "add_generation_prompt": False},
            turn(
                "system",
                "# Tools\n\nThese functions can be called:\n\n<tools>\n"
                + json.dumps(TOOL, ensure_ascii=False)
                + TOOLS_TAIL
                + "\n\nS",
            )
            + turn("user", "A"),
        ),
        (
            [user("A"), assistant("", tool_calls=[call(ARGUMENTS)]), result("ok"), result("ko")],
            {"add_generation_prompt": False},
            turn("user", "A")
            + turn(
                "assistant",
                "<think>\n\n</think>\n\n<tool_call>\n<function=set_light>\n"
                "<parameter=on>\ntrue\n</parameter>\n<parameter=level>\n1.5\n</parameter>\n"
                "<parameter=note>\ntwo\nlines\n</parameter>\n"
                '<parameter=rooms>\n[1, {"k": "v", "a": "č"}]\n</parameter>\n'
                "<parameter=none>\nnull\n</parameter>\n</function>\n</tool_call>",
            )
            + turn(
                "user",
                "\n<tool_response>\nok\n</tool_response>\n<tool_response>\nko\n</tool_response>",
            ).replace("user\n\n", "user\n"),
        ),
    ],
)
def test_exact_text(template, messages, options, expected):
    assert template.render(messages, **options) == expected


@pytest.mark.parametrize("name", CONVERSATIONS)
@pytest.mark.parametrize("options", OPTIONS)
def test_rendered_text_survives_the_tokenizer(template, tokenizer, name, options):
    text = template.render(CONVERSATIONS[name], **options)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    turns = text.count("<|im_start|>")
    assert turns == ids.count(tokenizer.token_id("<|im_start|>")) >= 1
    # Every turn is closed, but for the one that the model is to write.
    opened = options.get("add_generation_prompt", True)
    assert ids.count(tokenizer.token_id("<|im_end|>")) == turns - int(opened)


def test_json_string_arguments_render_like_mappings(template):
    mapping = CONVERSATIONS["call and result"]
    strings = json.loads(json.dumps(mapping))
    function = strings[1]["tool_calls"][0]["function"]
    function["arguments"] = json.dumps(function["arguments"])
    before = json.dumps(strings)
    assert template.render(strings) == template.render(mapping)
    assert json.dumps(strings) == before  # the caller's messages are left alone


def test_flat_calls_and_empty_arguments(template):
    flat = [user("A"), assistant("", tool_calls=[{"name": "set_light", "arguments": '{"on": true}'}])]
    nested = [user("A"), assistant("", tool_calls=[call({"on": True})])]
    assert template.render(flat) == template.render(nested)
    empty = [user("A"), assistant("", tool_calls=[call("")])]
    assert template.render(empty) == template.render([user("A"), assistant("", tool_calls=[call({})])])


@pytest.mark.parametrize(
    "arguments",
    [
        "{",
        '{"value": ',
        "{'on': 1}",
        "[1]",
        '"x"',
        "7",
        "NaN",
        "[" * 100_000,
        '{"a": ' * 500 + "1" + "}" * 500,
        "9" * 5000,
    ],
)
def test_arguments_that_are_no_object_become_a_text_in_the_call(template, arguments):
    messages = [user("A"), assistant("", tool_calls=[call({"on": True}), call(arguments)])]
    text = template.render(messages)
    assert f"<function=set_light>\n<parameter=arguments>\n{arguments}\n</parameter>\n</function>" in text
    assert text.count("<parameter=on>\ntrue") == 1


@pytest.mark.parametrize(("value", "shown"), [([1], "[1]"), (7, "7"), (True, "true"), ([{"č": None}], '[{"č": null}]')])
def test_argument_values_that_are_no_object(template, value, shown):
    text = template.render([user("A"), assistant("", tool_calls=[call(value)])])
    assert f"<parameter=arguments>\n{shown}\n</parameter>" in text


@pytest.mark.parametrize("nothing", [None, "", " ", "null", {}, "{}"])
def test_calls_without_arguments(template, nothing):
    text = template.render([user("A"), assistant("", tool_calls=[call(nothing)])])
    assert "<tool_call>\n<function=set_light>\n</function>" in text


def test_mappings_too_deep_for_a_template_are_a_text_as_well(template):
    deep: dict = {}
    for _ in range(100_000):
        deep = {"a": deep}
    text = template.render([user("A"), assistant("", tool_calls=[call(deep)])])
    assert "<parameter=arguments>\n{" in text
    while deep:  # bit by bit: freeing it at once would recurse
        deep = deep.pop("a")


def test_results_without_content_are_empty(template):
    messages = [user("A"), assistant(None, tool_calls=[call({})]), {"role": "tool", "content": None}, {"role": "tool"}]
    assert template.render(messages).count("<tool_response>\n\n</tool_response>") == 2


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ("Hi", "list of mappings"),
        ({"role": "user", "content": "Hi"}, "list of mappings"),
        (["Hi"], "message 0 must be a mapping"),
        ([user("A"), {"content": "B"}], "message 1 must have a role"),
        ([user("A"), {"role": 3}], "message 1 must have a role"),
        ([user("A"), assistant("", tool_calls="x")], "message 1: tool_calls"),
        ([user("A"), assistant("", tool_calls=["x"])], "message 1, tool call 0"),
        ([], "refuses the messages: The conversation is empty"),
        ([system("S")], "refuses the messages: The conversation has no user message"),
        ([user("A"), system("S")], "refuses the messages: A system message has to come first"),
        ([user("A"), {"role": "developer", "content": "S"}], "Unknown message role: developer"),
        ([user([{"type": "image"}])], "Only text parts"),
        ([user(3)], "Message content has to be"),
        ([user("A"), assistant("", tool_calls=[call({"x": {1, 2}})])], "not JSON serializable"),
    ],
)
def test_refused_messages(template, messages, reason):
    with pytest.raises(TemplateError, match=reason):
        template.render(messages)


@pytest.mark.parametrize("tools", ["x", TOOL])
def test_tools_must_be_a_list(template, tools):
    with pytest.raises(TemplateError, match="tools must be a list"):
        template.render([user("A")], tools=tools)


def test_a_leading_developer_message_is_a_system_message(template):
    developer = [{"role": "developer", "content": "S"}, user("A")]
    assert template.render(developer) == template.render([system("S"), user("A")])
    assert developer[0]["role"] == "developer"


def test_the_jinja_file_wins_over_the_config(directory):
    set_config_template(directory, "from the config")
    assert ChatTemplate.from_directory(directory).render([user("Hi")]).startswith("<|im_start|>user")
    (directory / "chat_template.jinja").unlink()
    assert ChatTemplate.from_directory(directory).render([user("Hi")]) == "from the config"


def test_named_templates(directory):
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    set_config_template(directory, named)
    assert ChatTemplate.from_directory(directory).source.startswith("{#-")
    assert ChatTemplate.from_directory(directory, "tool_use").render([user("Hi")]) == "tools"
    (directory / "chat_template.jinja").unlink()
    assert ChatTemplate.from_directory(directory).render([user("Hi")]) == "plain"
    with pytest.raises(TemplateError, match="no chat template named 'rag'; there are default, tool_use"):
        ChatTemplate.from_directory(directory, "rag")
    (directory / "additional_chat_templates").mkdir()
    (directory / "additional_chat_templates" / "rag.jinja").write_text("documents", encoding="utf-8")
    assert ChatTemplate.from_directory(directory, "rag").render([user("Hi")]) == "documents"
    with pytest.raises(TemplateError, match="no chat template named"):
        ChatTemplate.from_directory(directory / "additional_chat_templates" / "..", "../chat_template")


def test_no_template_is_a_clear_error(tmp_path):
    with pytest.raises(TemplateError, match=r"no chat template, neither chat_template\.jinja nor"):
        ChatTemplate.from_directory(tmp_path)


@pytest.mark.parametrize("value", [3, {"a": "b"}, [{"name": "default"}], ["x"], [{"name": 1, "template": "x"}]])
def test_malformed_config_templates_are_refused(directory, value):
    set_config_template(directory, value)
    with pytest.raises(TokenizerError, match=r"tokenizer_config\.json: chat_template"):
        ChatTemplate.from_directory(directory)


def test_undecodable_template_file(directory):
    (directory / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(TemplateError, match=r"chat_template\.jinja: is not UTF-8"):
        ChatTemplate.from_directory(directory)


def test_special_tokens_are_variables(directory):
    (directory / "chat_template.jinja").write_text("{{ eos_token }}|{{ bos_token }}|{{ pad_token }}")
    text = ChatTemplate.from_directory(directory).render([user("Hi")])
    assert text == "<|im_end|>||<|endoftext|>"


def set_config_template(directory, value):
    path = directory / "tokenizer_config.json"
    fields = json.loads(path.read_text(encoding="utf-8"))
    fields["chat_template"] = value
    path.write_text(json.dumps(fields), encoding="utf-8")


def test_lone_surrogates_that_a_template_writes_become_replacement_characters():
    template = ChatTemplate("{{ '\\ud800' }}{{ '\\ud83d' }}{{ '\\ude00' }}{{ messages[0].content }}")
    assert template.render([user("a\udfffb")]) == "\ufffd\U0001f600a\ufffdb"
