"""Fuzz of request bodies: whatever they hold, the answer is an answer or an error in the API's shape, never a 500."""

import copy
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
CHAT = {
    "model": "lily-tiny",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "1", "content": "4"},
    ],
    "tools": [TOOL],
    "tool_choice": "auto",
    "response_format": {"type": "text"},
    "stop": ["x"],
    "logprobs": True,
    "top_logprobs": 2,
    "logit_bias": {"5": 1},
    "seed": 1,
    "temperature": 0.5,
    "stream_options": {"include_usage": True},
    "stream": True,
    "chat_template_kwargs": {"enable_thinking": False},
    "max_tokens": 1,
}
MESSAGES = {
    "model": "lily-tiny",
    "max_tokens": 1,
    "system": [{"type": "text", "text": "Be brief."}],
    "messages": [
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "x", "signature": "y"},
                {"type": "web_search_tool_result", "tool_use_id": "0", "content": [{"type": "image", "title": "x"}]},
                {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}},
            ],
        },
        {"role": "system", "content": [{"type": "tool_addition", "tool": {"type": "tool_reference", "name": "f"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "4", "is_error": True}]},
    ],
    "tools": [{"name": "f", "input_schema": {"type": "object"}}],
    "tool_choice": {"type": "auto"},
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "stop_sequences": ["x"],
}
RESPONSES = {
    "model": "lily-tiny",
    "max_output_tokens": 1,
    "instructions": "Be brief.",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "web_search_call", "id": "w", "action": {"type": "search", "query": "x"}},
        {"type": "shell_call_output", "call_id": "1", "output": [{"stdout": "x", "outcome": {"type": "exit"}}]},
        {"type": "item_reference", "id": "x"},
        {"type": "function_call_output", "call_id": "1", "output": "4"},
    ],
    "tools": [
        {"type": "function", "name": "f", "parameters": {"type": "object"}},
        {"type": "custom", "name": "g", "format": {"type": "grammar", "syntax": "lark", "definition": "x"}},
        {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "h"}]},
        {"type": "web_search"},
    ],
    "tool_choice": {"type": "function", "name": "f"},
    "text": {"format": {"type": "json_object"}},
    "reasoning": {"effort": "none"},
}
COMPLETIONS = {"model": "lily-tiny", "prompt": ["a", [1, 2]], "max_tokens": 1, "echo": True, "logprobs": 1, "n": 2}
BODIES = {
    "/v1/chat/completions": CHAT,
    "/v1/messages": MESSAGES,
    "/v1/messages/count_tokens": {key: value for key, value in MESSAGES.items() if key != "max_tokens"},
    "/v1/responses": RESPONSES,
    "/v1/completions": COMPLETIONS,
    "/tokenize": {"prompt": "a", "parse_special": False},
    "/detokenize": {"tokens": [1, 2]},
}
LIMITS = ("max_tokens", "max_output_tokens", "max_completion_tokens", "n")

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**65), 2**65), st.floats(), st.text(max_size=5),
    st.sampled_from(["user", "auto", "function", "text", "\ud800", "<|im_end|>", "json_schema", "", "lily-tiny"]),
)  # fmt: skip
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=5,
)


def places(value, path=()):
    """All places in a body."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield (*path, key)
        yield from places(item, (*path, key))


def changed(body, path, value):
    """A copy with another value at one place; `...` takes it out."""
    body = copy.deepcopy(body)
    holder = body
    for key in path[:-1]:
        holder = holder[key]
    if value is ...:
        del holder[path[-1]]
    else:
        holder[path[-1]] = value
    return body


@pytest.mark.parametrize("path", BODIES)
def test_changed_bodies(client, path):
    body = BODIES[path]
    if path == "/v1/responses":
        pytest.importorskip("llguidance")
    assert client.post(path, json=body).status_code == 200
    where = st.sampled_from([one for one in places(body) if one[-1] not in LIMITS])
    change = st.tuples(where, st.one_of(values, st.just(...)))

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(change, st.none() | st.tuples(st.text(max_size=8), values))
    def answers(change, more):
        request = changed(body, *change)
        if more is not None and more[0] not in request:
            request[more[0]] = more[1]
        check(client, path, request)

    answers()


def check(client, path, request):
    response = client.post(path, content=json.dumps(request).encode())
    assert response.status_code in (200, 400, 404), response.text
    if response.status_code == 200:
        assert "server_error" not in response.text
        return
    told = response.json()["error"]
    assert told["message"]
    assert told["type"] in ("invalid_request_error", "not_found_error")
    if "messages" not in path:
        assert set(told) == {"message", "type", "param", "code"}


FOUND = [  # by longer runs of the fuzz above
    ("/v1/chat/completions", ("messages", 0), None),
    ("/v1/chat/completions", ("messages", 3, "tool_call_id"), ["1"]),
    ("/v1/responses", ("input", 3, "call_id"), {}),
    ("/v1/responses", ("input", 2, "type"), ["x"]),
    ("/v1/messages", ("messages", 1, "content", 1, "content", 0, "type"), {}),
    ("/v1/responses", ("instructions",), "\ud800"),
    ("/v1/completions", ("model",), "\ud800"),
    ("/v1/messages", ("model",), "\ud800"),
    ("/v1/chat/completions", ("chat_template_kwargs",), {"self": 1}),
    ("/v1/chat/completions", ("chat_template_kwargs",), {"template": "x"}),
    ("/v1/responses", ("chat_template_kwargs",), {"namespace": None}),
    ("/v1/chat/completions", ("tools", 0, "function", "name"), "<tool_call>"),
    ("/v1/messages", ("tools", 0, "name"), "<|im_end|>"),
]


@pytest.mark.parametrize(("path", "place", "value"), FOUND)
def test_bodies_that_once_failed(client, path, place, value):
    check(client, path, changed(BODIES[path], place, value))


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.binary(max_size=40) | values.map(lambda value: repr(value).encode()))
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_bodies_of_any_kind(client, path, content):
    assert client.post(path, content=content).status_code == 400


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b'{"seed": ' + b"9" * 10_000 + b"}",
        b'{"max_tokens": 1e400}',
        b'{"metadata": {"a": NaN}}',
        b'{"metadata": {"a": 1e999}}',
    ],
    ids=range(6),
)
def test_deep_nesting_and_large_numbers(client, content):
    assert client.post("/v1/chat/completions", content=content).status_code == 400
