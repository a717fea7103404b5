"""Answers that the client has begun: they go on where they end, on all three APIs, in content and in thinking."""

import json

import pytest

from lily import Sampling

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
ASK = {"role": "user", "content": "Say ten things."}
END = "<|im_start|>assistant\n"


def body(path, answer, **fields):
    return {"input" if path == RESPONSES else "messages": [ASK, answer], **fields}


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
@pytest.mark.parametrize("content", ["One, two", "Line\n", "See: ", "a\n\n  b", "  <|im_end|> x "])
def test_the_prompt_ends_where_the_answer_goes_on(prompt_of, path, content):
    prompt = prompt_of(path, body(path, {"role": "assistant", "content": content}))
    assert prompt.endswith(f"{END}<think>\n\n</think>\n\n{content}")


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        (CHAT, {"content": "", "reasoning_content": "I count: one,"}),
        (CHAT, {"content": "<think>\nI count: one,"}),
        (MESSAGES, {"content": [{"type": "thinking", "thinking": "I count: one,", "signature": "x"}]}),
        (RESPONSES, {"content": "<think>I count: one,"}),
    ],
)
def test_thinking_goes_on(prompt_of, path, answer):
    assert prompt_of(path, body(path, {"role": "assistant", **answer})).endswith(f"{END}<think>\nI count: one,")


def test_thinking_that_is_done_stays_done(prompt_of):
    for content in ("<think>\nI count.\n</think>\n\nOne", "One"):
        answer = {"role": "assistant", "content": content}
        more = {} if content.startswith("<") else {"reasoning_content": "I count."}
        prompt = prompt_of(CHAT, body(CHAT, {**answer, **more}))
        assert prompt.endswith(f"{END}<think>\nI count.\n</think>\n\nOne")


@pytest.mark.parametrize("stream", [False, True])
def test_the_rest_is_returned_as_it_is(client, script, stream):
    """White space at its beginning counts, and thinking that goes on is thinking."""
    for answer, said, content, reasoning in (
        ({"content": "One"}, "\ntwo <think>", "\ntwo <think>", ""),
        ({"reasoning_content": "I count: one,"}, "\n two\n</think>\n\nTwo.", "Two.", "\n two"),
    ):
        script(said)
        response = client.post(CHAT, json=body(CHAT, {"role": "assistant", **answer}, stream=stream))
        if stream:
            lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: {")]
            pieces = [json.loads(line)["choices"][0]["delta"] for line in lines]
        else:
            pieces = [response.json()["choices"][0]["message"]]
        assert "".join(piece.get("content") or "" for piece in pieces) == content
        assert "".join(piece.get("reasoning_content") or "" for piece in pieces) == reasoning


def test_the_anthropic_client_goes_on(client, script):
    anthropic = pytest.importorskip("anthropic")
    with anthropic.Anthropic(base_url=str(client.base_url), api_key="none", max_retries=0) as api:
        script(" two")
        messages = [ASK, {"role": "assistant", "content": "One,"}]
        answer = api.messages.create(model="lily-tiny", max_tokens=20, messages=messages)
        assert [block.text for block in answer.content] == [" two"]
        count = api.messages.count_tokens(model="lily-tiny", messages=messages).input_tokens
        assert count == answer.usage.input_tokens + answer.usage.cache_read_input_tokens


def test_the_openai_client_goes_on(client, script):
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{client.base_url}/v1", api_key="none", max_retries=0) as api:
        messages = [ASK, {"role": "assistant", "content": "One,"}]
        script(" two", " two")
        switches = {"continue_final_message": True, "add_generation_prompt": False}
        chat = api.chat.completions.create(model="lily-tiny", messages=messages, extra_body=switches)
        assert chat.choices[0].message.content == " two"
        assert api.responses.create(model="lily-tiny", input=messages).output_text == " two"


def test_a_form_goes_on(client):
    pytest.importorskip("llguidance")
    schema = {
        "type": "object",
        "properties": {"a": {"type": "boolean"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    fields = {"response_format": form, "max_tokens": 80, "temperature": 0}
    rest = client.post(CHAT, json=body(CHAT, {"role": "assistant", "content": '{"a": tr'}, **fields)).json()
    assert set(json.loads('{"a": tr' + rest["choices"][0]["message"]["content"])) == {"a"}


def test_the_library_joins_the_answer(model):
    messages = [ASK, {"role": "assistant", "content": "One, two"}]
    whole = []
    with model.chat(messages=messages, sampling=Sampling.greedy(), max_tokens=6, continue_answer=True) as chat:
        rest = chat.ask()
        whole = chat.messages
    assert [message["role"] for message in whole] == ["user", "assistant"]
    assert whole[1]["content"] == "One, two" + rest.content
    assert rest.content
    assert not rest.reasoning


def test_the_next_turn_finds_an_answer_that_was_begun(client, script):
    script(" two.", "Yes.")
    begun = [ASK, {"role": "assistant", "content": "One,"}]
    first = client.post(CHAT, json={"messages": begun, "max_tokens": 20}).json()
    whole = {"role": "assistant", "content": "One," + first["choices"][0]["message"]["content"]}
    after = client.post(CHAT, json={"messages": [ASK, whole, ASK], "max_tokens": 20, "enable_thinking": False}).json()
    assert after["usage"]["prompt_tokens_details"]["cached_tokens"] > 8


TOOL = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}


@pytest.mark.parametrize("content", ["Sure.", "Here is the call:\n"])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "now"}}])
def test_a_forced_call_comes_behind_what_was_begun(client, content, choice):
    fields = {"tools": [TOOL], "tool_choice": choice, "max_tokens": 40}
    response = client.post(CHAT, json=body(CHAT, {"role": "assistant", "content": content}, **fields))
    assert response.status_code == 200, response.text
    (call,) = response.json()["choices"][0]["message"]["tool_calls"][:1]
    assert call["function"]["name"] == "now"


@pytest.mark.parametrize("content", ["```json\n", "Here is the JSON:\n"])
def test_a_form_comes_behind_what_is_no_beginning_of_it(client, content):
    schema = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    answer = {"role": "assistant", "content": content}
    response = client.post(CHAT, json=body(CHAT, answer, response_format=form, max_tokens=40))
    assert response.status_code == 200, response.text
    assert json.loads(response.json()["choices"][0]["message"]["content"]) == {"a": 1}


WRITE = {"type": "object", "properties": {"text": {"type": "string"}}}
WRITES = {
    CHAT: {"type": "function", "function": {"name": "write", "parameters": WRITE}},
    MESSAGES: {"name": "write", "input_schema": WRITE},
    RESPONSES: {"type": "function", "name": "write", "parameters": WRITE},
}
MARKUP = "<tool_call>\n<function=write>\n<parameter=text>\nhello\n</parameter>\n</function>\n</tool_call>"


def texts_and_calls(path, answer):
    """Text, and names and arguments of calls, of a complete answer."""
    if path == CHAT:
        message = answer["choices"][0]["message"]
        calls = [call["function"] for call in message.get("tool_calls") or []]
        return message["content"] or "", [(call["name"], json.loads(call["arguments"])) for call in calls]
    if path == MESSAGES:
        calls = [(block["name"], block["input"]) for block in answer["content"] if block["type"] == "tool_use"]
        return "".join(block.get("text", "") for block in answer["content"]), calls
    calls = [item for item in answer["output"] if item["type"] == "function_call"]
    messages = [part["text"] for item in answer["output"] for part in item.get("content", [])]
    return "".join(messages), [(call["name"], json.loads(call["arguments"])) for call in calls]


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
@pytest.mark.parametrize("border", [4, 22, 30, 40, 49, 55, 70, 80, len(MARKUP) - 3])
def test_a_call_that_was_begun_is_whole(client, script, path, border):
    script(MARKUP[border:])
    answer = {"role": "assistant", "content": "Sure.\n\n" + MARKUP[:border]}
    fields = {"tools": [WRITES[path]], "max_tokens" if path != RESPONSES else "max_output_tokens": 100}
    response = client.post(path, json={**body(path, answer), **fields})
    assert response.status_code == 200, response.text
    assert texts_and_calls(path, response.json()) == ("", [("write", {"text": "hello"})])


def test_a_stream_of_a_call_that_was_begun(client, script):
    script(MARKUP[52:])
    answer = {"role": "assistant", "content": MARKUP[:52]}
    response = client.post(CHAT, json=body(CHAT, answer, tools=[WRITES[CHAT]], stream=True, max_tokens=100))
    lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: {")]
    deltas = [json.loads(line)["choices"][0]["delta"] for line in lines]
    pieces = [call["function"]["arguments"] for delta in deltas for call in delta.get("tool_calls", [])]
    assert json.loads("".join(pieces)) == {"text": "hello"}
    assert not any(delta.get("content") for delta in deltas)
