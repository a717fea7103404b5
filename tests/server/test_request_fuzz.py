"""Fuzz of request bodies: whatever they hold, the answer is an answer or an error in the API's shape, never a 500."""

import copy
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz.request_bodies import BODIES, LIMITS

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
    if path.startswith("/v1/responses"):
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
