"""Tools of every kind: functions, free text, those that run elsewhere, and which of them may be called."""

import json

import pytest

from lily.chat import Chat
from lily.server import turns

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
HELLO = [{"role": "user", "content": "Hello!"}]
FUNCTION = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
PATCH = {
    "type": "custom",
    "name": "patch",
    "description": "Change files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: BEGIN"},
}
CALL = '<tool_call>\n<function=patch>\n<parameter=input>\n*** Begin\n+ a "b"\n</parameter>\n</function>\n</tool_call>'
TEXT = '*** Begin\n+ a "b"'
ELSEWHERE = [
    {"type": "web_search"},
    {"type": "web_search_preview", "search_context_size": "low"},
    {"type": "file_search", "vector_store_ids": ["x"]},
    {"type": "computer_use_preview", "display_width": 1, "display_height": 1, "environment": "linux"},
    {"type": "mcp", "server_label": "x", "server_url": "https://example.org"},
    {"type": "code_interpreter", "container": {"type": "auto"}},
    {"type": "image_generation"},
    {"type": "local_shell"},
    {"type": "shell"},
    {"type": "apply_patch"},
    {"type": "tool_search"},
    {"type": "made_up_later"},
]


@pytest.mark.parametrize("tool", ELSEWHERE, ids=lambda tool: tool["type"])
def test_tools_that_run_elsewhere_are_left_out(client, prompt_of, tool):
    body = {"model": "lily-tiny", "input": HELLO, "max_output_tokens": 1}
    with_it = client.post(RESPONSES, json={**body, "tools": [tool]})
    assert with_it.status_code == 200
    assert tool["type"] in with_it.headers["x-lily-warnings"]
    assert with_it.json()["usage"]["input_tokens"] == client.post(RESPONSES, json=body).json()["usage"]["input_tokens"]
    for choice in ({"type": tool["type"]}, "required"):
        assert client.post(RESPONSES, json={**body, "tools": [tool], "tool_choice": choice}).status_code == 200
    assert f'"{tool["type"]}"' not in prompt_of(CHAT, {"messages": HELLO, "tools": [tool, FUNCTION]})


def test_tools_as_gemini_s_api_has_them(client, strict_client, prompt_of):
    given = [{"googleSearch": {}}, {"function_declarations": [{"name": "g", "description": "Does g."}]}]
    assert "Does g." in prompt_of(CHAT, {"messages": HELLO, "tools": given})
    body = {"model": "lily-tiny", "messages": HELLO, "max_tokens": 1, "tools": given}
    assert "googleSearch" in client.post(CHAT, json=body).headers["x-lily-warnings"]
    assert strict_client.post(CHAT, json=body).status_code == 400
    assert client.post(CHAT, json={**body, "tools": [{}]}).status_code == 400


def test_free_text_in_responses(client, script, prompt_of):
    body = {"model": "lily-tiny", "input": HELLO, "tools": [PATCH], "reasoning": {"effort": "none"}}
    prompt = prompt_of(RESPONSES, body)
    assert "Change files." in prompt
    assert "start: BEGIN" in prompt
    script(CALL, CALL, "Done.")
    item = client.post(RESPONSES, json=body).json()["output"][0]
    assert (item["type"], item["name"], item["input"]) == ("custom_tool_call", "patch", TEXT)
    lines = client.post(RESPONSES, json={**body, "stream": True}).text.splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    kinds = [event["type"] for event in events]
    assert kinds[2:-1] == [
        "response.output_item.added",
        "response.custom_tool_call_input.delta",
        "response.custom_tool_call_input.done",
        "response.output_item.done",
    ]
    assert events[3]["delta"] == events[4]["input"] == events[5]["item"]["input"] == TEXT
    output = {"type": "custom_tool_call_output", "call_id": item["call_id"], "output": "done"}
    assert f"<parameter=input>\n{TEXT}\n</parameter>" in prompt_of(RESPONSES, {**body, "input": [*HELLO, item, output]})


def test_free_text_in_chat_completions(client, script):
    tool = {"type": "custom", "custom": {key: value for key, value in PATCH.items() if key != "type"}}
    body = {"messages": HELLO, "tools": [tool, FUNCTION], "enable_thinking": False}
    script(CALL, CALL)
    call = client.post(CHAT, json=body).json()["choices"][0]["message"]["tool_calls"][0]
    assert (call["type"], call["custom"]) == ("custom", {"name": "patch", "input": TEXT})
    lines = client.post(CHAT, json={**body, "stream": True}).text.splitlines()
    deltas = [json.loads(line[6:])["choices"][0]["delta"] for line in lines if line.startswith("data: {")]
    pieces = [piece for delta in deltas for piece in delta.get("tool_calls", [])]
    assert [(one["index"], one["type"], one["custom"]["input"]) for one in pieces] == [(0, "custom", TEXT)]


@pytest.mark.parametrize("stream", [False, True])
def test_older_functions(client, script, stream):
    body = {"messages": HELLO, "functions": [FUNCTION["function"]], "function_call": "auto", "enable_thinking": False}
    script("<tool_call>\n<function=f>\n<parameter=a>\n7\n</parameter>\n</function>\n</tool_call>")
    response = client.post(CHAT, json={**body, "stream": stream})
    if stream:
        lines = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
        choices = [line["choices"][0] for line in lines]
        call = next(one["delta"]["function_call"] for one in choices if "function_call" in one["delta"])
        reason = choices[-1]["finish_reason"]
    else:
        choice = response.json()["choices"][0]
        call, reason = choice["message"]["function_call"], choice["finish_reason"]
        assert "tool_calls" not in choice["message"]
    assert (call["name"], json.loads(call["arguments"]), reason) == ("f", {"a": "7"}, "function_call")


@pytest.mark.parametrize(
    ("path", "choice"),
    [
        (
            CHAT,
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "g"}}]},
            },
        ),
        (RESPONSES, {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "g"}]}),
    ],
)
def test_some_tools_are_allowed(client, prompt_of, path, choice):
    tools = [FUNCTION, {"type": "function", "function": {"name": "g"}}]
    tools = tools if path == CHAT else [{"type": "function", **tool["function"]} for tool in tools]
    body = {"input" if path == RESPONSES else "messages": HELLO, "tools": tools, "tool_choice": choice}
    prompt = prompt_of(path, body)
    assert '"g"' in prompt
    assert '"f"' not in prompt
    wrong = json.loads(
        json.dumps(body).replace('"name": "g"', '"name": "h"', 2).replace('"name": "h"', '"name": "g"', 1)
    )
    response = client.post(path, json=wrong)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "tool_choice"


def test_parallel_calls_can_be_turned_off_on_each_api(client, monkeypatch):
    seen = []

    def watch(model, options, **others):
        seen.append(options.parallel_tool_calls)
        return Chat(model, options, **others)

    monkeypatch.setattr(turns, "Chat", watch)
    tool = {"name": "f", "input_schema": {"type": "object"}}
    for path, off in (
        (CHAT, {"messages": HELLO, "tools": [FUNCTION], "parallel_tool_calls": False, "max_tokens": 1}),
        (
            RESPONSES,
            {
                "input": HELLO,
                "tools": [{"type": "function", "name": "f"}],
                "parallel_tool_calls": False,
                "max_output_tokens": 1,
            },
        ),
        (
            MESSAGES,
            {
                "messages": HELLO,
                "tools": [tool],
                "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
                "max_tokens": 1,
            },
        ),
    ):
        for stream in (False, True):
            assert client.post(path, json={"model": "lily-tiny", **off, "stream": stream}).status_code == 200
            assert seen.pop() is False


@pytest.mark.parametrize(
    ("tool", "texts"),
    [
        ({"type": "bash_20250124", "name": "bash"}, ['"bash"', '"restart"']),
        (
            {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"},
            ['"str_replace_based_edit_tool"', '"old_str"'],
        ),
        ({"type": "custom", "name": "f", "input_schema": {"type": "object", "properties": {"abc": {}}}}, ['"abc"']),
        (
            {
                "name": "f",
                "input_schema": {"type": "object"},
                "defer_loading": True,
                "cache_control": {"type": "ephemeral"},
            },
            ['"f"'],
        ),
    ],
)
def test_tools_of_the_messages_api_that_clients_run(prompt_of, tool, texts):
    prompt = prompt_of(MESSAGES, {"messages": HELLO, "tools": [tool]})
    assert all(text in prompt for text in texts)


def test_tools_that_a_message_adds(client, prompt_of):
    added = {
        "type": "tool_addition",
        "tool": {"type": "tool_definition", "definition": {"name": "late", "input_schema": {"type": "object"}}},
    }
    messages = [*HELLO, {"role": "system", "content": [added, added]}]
    assert '"name": "late"' in prompt_of(MESSAGES, {"messages": messages})
    items = [*HELLO, {"type": "tool_search_output", "tools": [{"type": "function", "name": "late"}]}]
    assert prompt_of(RESPONSES, {"input": [*items, items[-1]]}).count('"name": "late"') == 1
    server = {"type": "web_search_20250305", "name": "web_search"}
    response = client.post(MESSAGES, json={"model": "lily-tiny", "max_tokens": 1, "messages": HELLO, "tools": [server]})
    assert response.status_code == 200
    assert "tools.0" in response.headers["x-lily-warnings"]
    forced = {"messages": HELLO, "tools": [server], "tool_choice": {"type": "tool", "name": "web_search"}}
    response = client.post(MESSAGES, json={"model": "lily-tiny", "max_tokens": 1, **forced})
    assert response.status_code == 200
    assert "tool_choice is ignored" in response.headers["x-lily-warnings"]


def test_a_tool_that_runs_elsewhere_may_be_allowed(client, prompt_of):
    tools = [{"type": "computer", "name": "c"}, {"type": "function", "name": "f"}]
    for mode in ("auto", "required"):
        choice = {"type": "allowed_tools", "mode": mode, "tools": [{"type": "computer", "name": "c"}]}
        assert '"f"' not in prompt_of(RESPONSES, {"input": HELLO, "tools": tools, "tool_choice": choice})
