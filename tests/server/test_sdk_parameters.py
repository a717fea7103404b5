"""Every parameter, message, block, item and tool that the installed clients know is dealt with, and on purpose.

The types are those of the packages that are installed, so that a new one of theirs fails here until it has a place.
"""

from __future__ import annotations

import pytest

openai = pytest.importorskip("openai")
anthropic = pytest.importorskip("anthropic")
pytest.importorskip("llguidance")

from anthropic.types import message_count_tokens_params, message_create_params  # noqa: E402
from anthropic.types.beta import message_create_params as beta_create_params  # noqa: E402
from openai.types import completion_create_params  # noqa: E402
from openai.types.chat import completion_create_params as chat_create_params  # noqa: E402
from openai.types.responses import response_create_params  # noqa: E402
from sdk_types import dicts, example, fields  # noqa: E402

CHAT, MESSAGES, RESPONSES, COMPLETIONS = "/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/completions"
COUNT = "/v1/messages/count_tokens"
APIS = {
    CHAT: chat_create_params.CompletionCreateParamsNonStreaming,
    COMPLETIONS: completion_create_params.CompletionCreateParamsNonStreaming,
    RESPONSES: response_create_params.ResponseCreateParamsNonStreaming,
    MESSAGES: message_create_params.MessageCreateParamsNonStreaming,
    "beta": beta_create_params.MessageCreateParamsNonStreaming,
    COUNT: message_count_tokens_params.MessageCountTokensParams,
}
ASK = {"role": "user", "content": "Hello!"}
BODIES = {
    CHAT: {"model": "lily-tiny", "messages": [ASK], "max_tokens": 1},
    COMPLETIONS: {"model": "lily-tiny", "prompt": "Hello", "max_tokens": 1},
    RESPONSES: {"model": "lily-tiny", "input": [ASK], "max_output_tokens": 1},
    MESSAGES: {"model": "lily-tiny", "messages": [ASK], "max_tokens": 1},
    COUNT: {"model": "lily-tiny", "messages": [ASK]},
}
#: What is refused although the client may send it: to ignore it would change what the answer means.
REFUSED = {
    (CHAT, "audio"),
    (CHAT, "top_logprobs"),  # without logprobs
    (COMPLETIONS, "suffix"),
    (RESPONSES, "conversation"),
    (RESPONSES, "previous_response_id"),  # there is no such response
    (RESPONSES, "prompt"),
    (MESSAGES, "compaction"),
    (COUNT, "compaction"),
}
#: Examples that refer to something else in the request, or whose texts mean something.
GIVEN = {
    (CHAT, "function_call"): "auto",
    (CHAT, "modalities"): ["text"],
    (RESPONSES, "truncation"): "auto",
    (CHAT, "response_format"): {"type": "text"},
    (RESPONSES, "text"): {"format": {"type": "text"}, "verbosity": "low"},
    (MESSAGES, "output_config"): {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}},
    (COUNT, "output_config"): {"effort": "low"},
    (CHAT, "tool_choice"): "auto",
    (RESPONSES, "tool_choice"): "auto",
    (MESSAGES, "tool_choice"): {"type": "auto"},
    (COUNT, "tool_choice"): {"type": "auto"},
    (COMPLETIONS, "best_of"): 1,
    (CHAT, "n"): 1,
}
PARAMETERS = [
    (MESSAGES if api == "beta" else api, api, name)
    for api, kind in APIS.items()
    for name in fields(kind)
    if name not in ("model", "messages", "input", "prompt", "betas") or (api, name) == (RESPONSES, "prompt")
]


def post(client, path, **more):
    return client.post(path, json={**BODIES[path], **more})


@pytest.mark.parametrize(("path", "api", "name"), PARAMETERS)
def test_each_parameter_has_a_place(client, path, api, name):
    value = GIVEN.get((path, name), example(fields(APIS[api])[name], every=False))
    response = post(client, path, **{name: value})
    if (path, name) in REFUSED:
        assert response.status_code == 400
        error = response.json()["error"]
        assert name in (error["message"] if "param" not in error else error["param"])
        return
    assert response.status_code == 200, response.text
    assert "does not know" not in response.headers.get("x-lily-warnings", "")


def cases(hint):
    """Each TypedDict of a type, with its required fields and with all of them."""
    for kind in dicts(hint):
        for every in (False, True):
            value = example(kind, every=every)
            yield pytest.param(value, id=f"{kind.__name__}-{'all' if every else 'required'}")


chat_types = fields(APIS[CHAT])
response_types = fields(APIS[RESPONSES])
beta_types = fields(APIS["beta"])
SEEN = {"image_url", "input_audio", "input_image"}  # media that the user sends now


def check(response, value):
    """It is answered, unless it shows something."""
    if any(f"'type': '{one}'" in str(value) for one in SEEN) and response.status_code == 400:
        assert response.json()["error"]["code"] == "unsupported_content"
        return
    assert response.status_code == 200, response.text


@pytest.mark.parametrize("message", cases(chat_types["messages"]))
def test_chat_messages(client, message):
    check(post(client, CHAT, messages=[ASK, message, ASK]), message)
    check(post(client, CHAT, messages=[ASK, message, {"role": "assistant", "content": "Hm"}, ASK]), message)


@pytest.mark.parametrize(
    ("role", "part"),
    [
        pytest.param(fields(kind)["role"].__args__[0], *one.values, id=f"{kind.__name__}-{one.id}")
        for kind in dicts(chat_types["messages"])
        for one in cases(fields(kind)["content"])
    ],
)
def test_parts_of_chat_messages(client, role, part):
    message = {"role": role, "content": [part], "tool_call_id": "1", "name": "x"}
    history = [ASK, message, {"role": "assistant", "content": "Hm"}, ASK]
    assert post(client, CHAT, messages=history).status_code == 200
    check(post(client, CHAT, messages=[ASK, message]), part)


@pytest.mark.parametrize("tool", cases(chat_types["tools"]))
def test_chat_tools(client, tool):
    assert post(client, CHAT, tools=[tool]).status_code == 200
    kind = tool["type"]
    named = {"type": kind, kind: {"name": tool[kind]["name"]}}
    for choice in (named, {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [named]}}):
        assert post(client, CHAT, tools=[tool], tool_choice=choice).status_code == 200


@pytest.mark.parametrize("item", cases(response_types["input"]))
def test_response_items(client, item):
    response = post(client, RESPONSES, input=[ASK, item, {"role": "assistant", "content": "Hm"}, ASK])
    assert response.status_code == 200, response.text
    left_out = "cannot be read here and are left out" in response.headers.get("x-lily-warnings", "")
    assert left_out == (item.get("type") == "compaction")  # what another server has sealed
    check(post(client, RESPONSES, input=[ASK, item]), item)


@pytest.mark.parametrize("tool", cases(response_types["tools"]))
def test_response_tools(client, tool):
    response = post(client, RESPONSES, tools=[tool])
    assert response.status_code == 200, response.text
    known = tool["type"] in ("function", "custom", "namespace")
    assert known != (tool["type"] in response.headers.get("x-lily-warnings", ""))


@pytest.mark.parametrize("choice", cases(response_types["tool_choice"]))
def test_response_tool_choices(client, choice):
    tools = [{"type": "function", "name": "x"}]
    if choice["type"] == "allowed_tools":
        choice = {**choice, "tools": [{"type": "function", "name": "x"}]}
    assert post(client, RESPONSES, tools=tools, tool_choice=choice).status_code == 200


BLOCKS = [
    pytest.param(role, *one.values, id=f"{role}-{one.id}")
    for kind in dicts(beta_types["messages"])
    for role in [fields(kind)["role"].__args__[0]]
    for one in cases(fields(kind)["content"])
]


@pytest.mark.parametrize(("role", "block"), BLOCKS)
def test_blocks_of_messages(client, role, block):
    history = [ASK, {"role": role, "content": [block]}, {"role": "assistant", "content": "Hm"}, ASK]
    response = post(client, MESSAGES, messages=history)
    assert response.status_code == 200, response.text
    now = post(client, MESSAGES, messages=[ASK, {"role": role, "content": [block]}])
    assert now.status_code == (400 if role == "user" and block["type"] == "image" else 200), now.text
    result = {"type": "tool_result", "tool_use_id": "1", "content": [block]}
    assert post(client, MESSAGES, messages=[ASK, {"role": "user", "content": [result]}]).status_code == 200


@pytest.mark.parametrize("tool", cases(beta_types["tools"]))
def test_tools_of_messages(client, tool):
    response = post(client, MESSAGES, tools=[tool])
    assert response.status_code == 200, response.text
    ours = tool.get("type", "custom")
    known = ours is None or ours.startswith(("custom", "bash_", "text_editor_")) or "input_schema" in tool
    assert known != ("tools.0" in response.headers.get("x-lily-warnings", ""))


@pytest.mark.parametrize("value", [*cases(beta_types["thinking"]), *cases(fields(APIS[MESSAGES])["thinking"])])
def test_kinds_of_thinking(client, value):
    response = post(client, MESSAGES, thinking=value)
    assert response.status_code == 200, response.text
    assert "does not know" not in response.headers.get("x-lily-warnings", "")


@pytest.mark.parametrize("value", cases(beta_types["tool_choice"]))
def test_tool_choices_of_messages(client, value):
    tools = [{"name": "x", "input_schema": {"type": "object"}}]
    assert post(client, MESSAGES, tools=tools, tool_choice=value).status_code == 200
