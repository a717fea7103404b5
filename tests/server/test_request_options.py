"""Options under whichever name clients give them: what the server can do it does, the rest it tells."""

import json
import re

import pytest

from lily.chat import Chat
from lily.server import turns

CHAT, MESSAGES, RESPONSES, COMPLETIONS = "/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/completions"
HELLO = [{"role": "user", "content": "Hello!"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}


@pytest.fixture
def options_of(client, monkeypatch):
    """With what the library is called."""
    seen = []

    def chat(model, options, **others):
        seen.append({**vars(options), **others})
        return Chat(model, options, **others)

    monkeypatch.setattr(turns, "Chat", chat)

    def ask(path=CHAT, **fields):
        given = {"model": "lily-tiny", "input" if path == RESPONSES else "messages": HELLO, **fields}
        given = given if path == RESPONSES else {"max_tokens": 1, **given}
        response = client.post(path, json=given if path != RESPONSES else {"max_output_tokens": 1, **given})
        assert response.status_code == 200, response.text
        return seen[-1], response.headers.get("x-lily-warnings", "")

    return ask


@pytest.mark.parametrize(
    ("fields", "thinks"),
    [
        ({"reasoning_effort": "none"}, False),
        ({"reasoning_effort": "ultra"}, True),
        ({"reasoning": {"effort": "none"}}, False),
        ({"reasoning": {"enabled": False}}, False),
        ({"reasoning": {"max_tokens": 9}}, True),
        ({"thinking": {"type": "disabled"}}, False),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}}, True),
        ({"thinking": False}, False),
        ({"think": False}, False),
        ({"think": "low"}, True),
        ({"enable_thinking": False}, False),
        ({"enable_thinking": True, "reasoning_effort": "none"}, True),
        ({"chat_template_kwargs": {"enable_thinking": False}, "think": True}, False),
        ({}, True),
    ],
)
def test_thinking_under_each_of_its_names(options_of, fields, thinks):
    for path in (CHAT, RESPONSES):
        options, warnings = options_of(path, **fields)
        assert options["thinking"] is thinks
        assert options["max_thinking_tokens"] == (9 if "9" in str(fields) else None)
        assert not warnings


@pytest.mark.parametrize(
    ("fields", "name", "value"),
    [
        ({"repeat_penalty": 1.5}, "repetition_penalty", 1.5),
        ({"repetition_penalty": 1.5}, "repetition_penalty", 1.5),
        ({"min_p": 0.25, "top_k": 7.0}, "top_k", 7),
        ({"seed": -2}, "seed", (1 << 64) - 2),
        ({"seed": -1}, "seed", None),
    ],
)
def test_sampling_under_each_of_its_names(options_of, fields, name, value):
    for path in (CHAT, RESPONSES):
        options, warnings = options_of(path, **fields)
        assert getattr(options["sampling"], name) == value
        assert not warnings


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "n_predict", "num_predict"])
def test_limits_under_each_of_their_names(client, script, name):
    for value, words in ((-1, "One two three four"), (2, "One two")):
        script("One two three four")
        fields = {"messages": HELLO, "enable_thinking": False, name: value}
        answer = client.post(CHAT, json=fields).json()
        assert answer["choices"][0]["finish_reason"] == ("length" if value == 2 else "stop")
        assert answer["choices"][0]["message"]["content"] == words
    script("Done.")
    limit = client.post(CHAT, json={"messages": HELLO, "max_tokens": 10**9, "enable_thinking": False, "temperature": 0})
    assert limit.json()["choices"][0]["finish_reason"] == "stop"  # more than the context holds is as much as it holds


def test_tokens_that_end_an_answer(client, model, script):
    token = model.tokenizer.encode(" three")
    assert len(token) == 1
    script("One two three four")
    fields = {"messages": HELLO, "enable_thinking": False, "stop_token_ids": [*token, *model.stop_tokens], "stop": [""]}
    answer = client.post(CHAT, json=fields)
    assert answer.json()["choices"][0]["message"]["content"] == "One two"
    assert "x-lily-warnings" not in answer.headers
    assert client.post(CHAT, json={**fields, "stop_token_ids": ["x"]}).status_code == 400


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        {"guided_json": SCHEMA},
        {"json_schema": SCHEMA},
        {"format": SCHEMA},
        {"structured_outputs": {"json": SCHEMA}},
    ],
)
def test_forms_under_each_of_their_names(client, fields):
    pytest.importorskip("llguidance")
    fields = {"messages": HELLO, "enable_thinking": False, "temperature": 0, "max_tokens": 90, **fields}
    answer = client.post(CHAT, json=fields)
    assert set(json.loads(answer.json()["choices"][0]["message"]["content"])) == {"a"}
    assert "x-lily-warnings" not in answer.headers


@pytest.mark.parametrize(
    "fields",
    [{"guided_choice": ["A.B", "C"]}, {"guided_regex": "A\\.B|C"}, {"structured_outputs": {"choice": ["A.B", "C"]}}],
)
def test_choices(client, fields):
    pytest.importorskip("llguidance")
    answer = client.post(CHAT, json={"messages": HELLO, "enable_thinking": False, "max_tokens": 9, **fields}).json()
    assert answer["choices"][0]["message"]["content"] in ("A.B", "C")


@pytest.mark.parametrize("name", ["output_config", "output_format"])
@pytest.mark.parametrize("stream", [False, True])
def test_the_form_of_a_message(client, name, stream):
    pytest.importorskip("llguidance")
    form = {"type": "json_schema", "schema": SCHEMA}
    fields = {
        "max_tokens": 90,
        "temperature": 0,
        name: {"effort": "high", "format": form} if name == "output_config" else form,
    }
    response = client.post(MESSAGES, json={"model": "lily-tiny", "messages": HELLO, "stream": stream, **fields})
    assert response.status_code == 200, response.text
    if stream:
        lines = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: ")]
        text = "".join(line["delta"].get("text", "") for line in lines if line["type"] == "content_block_delta")
    else:
        text = response.json()["content"][0]["text"]
    assert set(json.loads(text)) == {"a"}
    wrong = {"max_tokens": 9, "output_config": {"format": {"schema": SCHEMA}}}
    refused = client.post(MESSAGES, json={"model": "lily-tiny", "messages": HELLO, **wrong})
    assert refused.status_code == 400
    assert "output_config.format" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    "name", ["client_metadata", "ttl", "keep_alive", "cache_prompt", "speed", "made_up", "min_tokens", "typical_p"]
)
@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES, COMPLETIONS])
def test_what_is_ignored_is_told(client, strict_client, name, path):
    body = {
        CHAT: {"messages": HELLO},
        MESSAGES: {"messages": HELLO},
        RESPONSES: {"input": "Hi"},
        COMPLETIONS: {"prompt": "Hi"},
    }[path]
    limit = "max_output_tokens" if path == RESPONSES else "max_tokens"
    body = {"model": "lily-tiny", limit: 1, **body, name: 5}
    whole = client.post(path, json=body)
    assert whole.status_code == 200
    assert name in whole.headers["x-lily-warnings"]
    assert any(name in warning for warning in whole.json()["warnings"])
    stream = client.post(path, json={**body, "stream": True})
    assert name in stream.headers["x-lily-warnings"]
    events = [line[6:] for line in stream.text.splitlines() if line.startswith("data: {")]
    assert sum('"warnings":[' in event for event in events[-2:]) == 1
    refused = strict_client.post(path, json=body)
    assert refused.status_code == 400
    assert name in refused.json()["error"]["message"]


def test_warnings_of_any_text_fit_into_a_header(client):
    body = {
        "messages": HELLO,
        "max_tokens": 1,
        " \r\n": 1,
        "\u00e4\ud800": 1,
        **{f"x{at}" * 200: 1 for at in range(60)},
    }
    response = client.post(CHAT, content=json.dumps(body).encode())
    assert response.status_code == 200
    assert len(response.headers["x-lily-warnings"]) <= 2000
    assert 20 < len(response.json()["warnings"]) <= 32


def test_a_turn_s_own_warnings_are_told(client, monkeypatch):
    from lily.chat.turn import Turn

    monkeypatch.setattr(Turn, "_warnings", lambda self: ("a keyword of the schema was dropped",))
    for path, body in (
        (CHAT, {"messages": HELLO, "max_tokens": 1}),
        (MESSAGES, {"messages": HELLO, "max_tokens": 1}),
        (RESPONSES, {"input": "Hi", "max_output_tokens": 1}),
    ):
        body = {"model": "lily-tiny", **body}
        assert client.post(path, json=body).json()["warnings"] == ["a keyword of the schema was dropped"]
        assert "keyword of the schema" in client.post(path, json={**body, "stream": True}).text


def test_thinking_blocks_are_signed(client):
    anthropic = pytest.importorskip("anthropic")
    fields = {
        "model": "lily-tiny",
        "max_tokens": 60,
        "thinking": {"type": "enabled", "budget_tokens": 20},
        "messages": HELLO,
    }
    with anthropic.Anthropic(base_url=str(client.base_url), api_key="none", max_retries=0) as api:
        whole = api.messages.create(**fields, extra_body={"temperature": 0})
        with api.messages.stream(**fields, extra_body={"temperature": 0}) as stream:
            deltas = [event.delta.type for event in stream if event.type == "content_block_delta"]
            streamed = stream.get_final_message()
        assert deltas.count("signature_delta") == 1
        assert deltas.index("signature_delta") == len([one for one in deltas if one == "thinking_delta"])
        assert streamed.content[0].signature == whole.content[0].signature != ""
        more = [*HELLO, {"role": "assistant", "content": streamed.content}, *HELLO]
        assert api.messages.create(**{**fields, "messages": more}).content


LONG = "word " * 6000


def test_prompts_that_do_not_fit_say_so_in_the_words_of_each_api(client):
    anthropic, openai = pytest.importorskip("anthropic"), pytest.importorskip("openai")
    for text in (LONG, LONG * 40):
        messages = [{"role": "user", "content": text}]
        with anthropic.Anthropic(base_url=str(client.base_url), api_key="none", max_retries=0) as api:
            with pytest.raises(anthropic.BadRequestError) as refused:
                api.messages.create(model="lily-tiny", max_tokens=5, messages=messages)
            told = refused.value.body["error"]
            assert told["type"] == "invalid_request_error"
            words = told["message"].split()
            assert words[:4] == ["prompt", "is", "too", "long:"]
            assert int(words[4]) > 4096
            assert words[5:] == ["tokens", ">", "4096", "maximum"]
        with openai.OpenAI(base_url=f"{client.base_url}/v1", api_key="none", max_retries=0) as api:
            for ask in (
                lambda: api.chat.completions.create(model="lily-tiny", messages=messages),  # noqa: B023
                lambda: api.responses.create(model="lily-tiny", input=messages),  # noqa: B023
                lambda: api.completions.create(model="lily-tiny", prompt=text),  # noqa: B023
            ):
                with pytest.raises(openai.BadRequestError) as refused:
                    ask()
                assert refused.value.code == "context_length_exceeded"
                assert "This model's maximum context length is 4096 tokens. However, your messages resulted in" in str(
                    refused.value
                )
    count = client.post(
        f"{MESSAGES}/count_tokens", json={"model": "lily-tiny", "messages": [{"role": "user", "content": LONG}]}
    )
    assert count.json()["input_tokens"] > 6000


RULES = 'root ::= "A." ("B" | "C") digit\ndigit ::= [0-9]'


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
@pytest.mark.parametrize(
    "fields",
    [
        {"regex": "A\\.[BC]\\d"},
        {"structured_outputs": {"regex": "A\\.[BC]\\d"}},
        {"grammar": RULES},
        {"ebnf": RULES},
        {"guided_grammar": RULES},
        {"guided_grammar": 'start: "A." ("B" | "C") /[0-9]/'},
        {"structured_outputs": {"grammar": RULES}},
        {"response_format": {"type": "grammar", "grammar": RULES}},
        {"response_format": {"type": "regex", "pattern": "A\\.[BC]\\d"}},
        {"response_format": {"type": "regex", "value": "A\\.[BC]\\d"}},
    ],
)
def test_forms_of_peers_that_are_no_schema(client, path, fields):
    pytest.importorskip("llguidance")
    if path == RESPONSES and "response_format" in fields:
        fields = {"text": {"format": fields["response_format"]}}
    given = {"input" if path == RESPONSES else "messages": HELLO, "enable_thinking": False, "temperature": 0, **fields}
    response = client.post(path, json=given)
    assert response.status_code == 200, response.text
    assert "x-lily-warnings" not in response.headers
    body = response.json()
    text = body["output"][0]["content"][0]["text"] if path == RESPONSES else body["choices"][0]["message"]["content"]
    assert re.fullmatch(r"A\.[BC]\d", text)


@pytest.mark.parametrize(
    "fields",
    [
        {"guided_json": json.dumps(SCHEMA)},
        {"json_schema": json.dumps(SCHEMA)},
        {"response_format": {"type": "json", "value": SCHEMA}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}, "regex": "x"},
    ],
)
def test_schemas_as_peers_write_them(client, fields):
    pytest.importorskip("llguidance")
    given = {"messages": HELLO, "enable_thinking": False, "temperature": 0, "max_tokens": 90, **fields}
    response = client.post(CHAT, json=given)
    assert set(json.loads(response.json()["choices"][0]["message"]["content"])) == {"a"}
    assert ("regex is ignored" in response.headers.get("x-lily-warnings", "")) == ("regex" in fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"guided_json": "{"},
        {"guided_json": 3},
        {"regex": 3},
        {"ebnf": "root ::= ("},
        {"ebnf": "a ::= b"},
        {"grammar": "root ::= x"},
        {"ebnf": "root ::= a\n" + "a ::= b\n" * 5000},
        {"structured_outputs": {"structural_tag": "x"}},
    ],
)
def test_forms_that_are_none_are_refused(client, fields):
    pytest.importorskip("llguidance")
    for path in (CHAT, RESPONSES, COMPLETIONS):
        name = {CHAT: "messages", RESPONSES: "input", COMPLETIONS: "prompt"}[path]
        response = client.post(path, json={name: "x" if path == COMPLETIONS else HELLO, **fields})
        assert response.status_code == 400, response.text


@pytest.mark.parametrize("fields", [{"regex": "x"}, {"guided_choice": ["x"]}, {"structured_outputs": {"json": SCHEMA}}])
def test_a_raw_completion_has_no_form(client, fields):
    response = client.post(COMPLETIONS, json={"prompt": "x", **fields})
    assert response.status_code == 400
    assert "/v1/chat/completions" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "name", "value"),
    [
        ({"temperature": "0.5"}, "temperature", 0.5),
        ({"temperature": "1"}, "temperature", 1.0),
        ({"top_k": "7"}, "top_k", 7),
        ({"seed": "-3"}, "seed", (1 << 64) - 3),
        ({"presence_penalty": "-1e0"}, "presence_penalty", -1.0),
        ({"logit_bias": [], "metadata": []}, "logit_bias", None),
        ({"stream": "false", "top_k": -1}, "top_k", 0),
    ],
)
def test_values_as_some_clients_write_them(options_of, fields, name, value):
    for path in (CHAT, RESPONSES):
        options, warnings = options_of(path, **fields)
        assert getattr(options["sampling"], name) == value
        assert not warnings


@pytest.mark.parametrize("value", ["warm", "", "1" * 30, "0x1", "nan", "1_0", "\u0661", [1], {"a": 1}])
def test_what_is_no_number_is_refused(client, value):
    for name in ("temperature", "top_k", "max_tokens"):
        assert client.post(CHAT, json={"messages": HELLO, name: value}).status_code == 400


@pytest.mark.parametrize(
    ("thinking", "thinks"),
    [
        ("enabled", True),
        ("disabled", False),
        ({}, False),
        ({"budget_tokens": 9}, True),
        ({"type": "auto"}, True),
        ({"type": "disabled"}, False),
    ],
)
def test_thinking_of_messages(options_of, thinking, thinks):
    options, _ = options_of(MESSAGES, thinking=thinking)
    assert options["thinking"] is thinks


def test_template_options_that_turn_the_thinking_off(options_of):
    for given in ({"thinking": False}, {"enable_thinking": "false"}, {"enable_thinking": False, "thinking": True}):
        assert options_of(chat_template_kwargs=given)[0]["thinking"] is False


@pytest.mark.parametrize("fields", [{"guided_json": SCHEMA}, {"response_format": {"type": "json", "value": SCHEMA}}])
def test_messages_take_the_forms_of_peers(client, fields):
    pytest.importorskip("llguidance")
    answer = client.post(MESSAGES, json={"messages": HELLO, "max_tokens": 90, "temperature": 0, **fields})
    assert set(json.loads(answer.json()["content"][0]["text"])) == {"a"}
    stopped = client.post(MESSAGES, json={"messages": HELLO, "max_tokens": 90, "stop": ["a", None], "temperature": 0})
    assert "x-lily-warnings" not in stopped.headers


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
def test_a_form_by_its_name_alone(client, options_of, path):
    pytest.importorskip("llguidance")
    fields = {"text": {"format": "json_object"}} if path == RESPONSES else {"response_format": "json_object"}
    assert options_of(path, **fields)[0]["response_format"] == {"type": "json_object"}


def test_a_tool_by_its_name_alone(options_of):
    pytest.importorskip("llguidance")
    tools = [{"type": "function", "function": {"name": "f"}}]
    choice = options_of(tools=tools, tool_choice="f")[0]["tool_choice"]
    assert choice == {"type": "function", "function": {"name": "f"}}
    assert options_of(tools=tools, tool_choice={"function": {"name": "f"}})[0]["tool_choice"] == choice
    assert options_of(tools=tools, tool_choice="")[0]["tool_choice"] is None


def test_logprobs_of_completions_as_a_flag(client):
    for given, count in ((True, 1), (False, None)):
        [choice] = client.post(COMPLETIONS, json={"prompt": "x", "max_tokens": 1, "logprobs": given}).json()["choices"]
        assert (choice["logprobs"] and len(choice["logprobs"]["top_logprobs"][0])) == count
