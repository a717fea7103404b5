"""What a request cannot do: reach files, freeze the server with a long prompt, or take memory that is not there."""

import json
import sys
import threading

import pytest

from lily import Model
from lily.errors import CancelledError, MemoryLimitError
from lily.server.byte_budget import ByteBudget, Charge
from lily.server.chat_history import read_chat_messages
from lily.server.content_parts import PartReader
from lily.server.request_warnings import Warnings
from lily.server.steps import Steps
from lily.server.work_limits import take_memory
from lily.text import Tokenizer

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
HELLO = [{"role": "user", "content": "Hello"}]
BODIES = {
    CHAT: {"messages": HELLO, "max_tokens": 2},
    MESSAGES: {"messages": HELLO, "max_tokens": 2},
    RESPONSES: {"input": "Hello", "max_output_tokens": 2},
    "/v1/completions": {"prompt": "Hello", "max_tokens": 2},
}


def bodies_naming(path):
    """Requests that name a file wherever a text may stand."""
    schema = {"type": "object", "properties": {"a": {"$ref": f"file://{path}"}}, "required": ["a"]}
    function = {"name": "f", "description": path, "parameters": schema}
    plain = {"enable_thinking": False}
    yield CHAT, {**BODIES[CHAT], "model": path}
    yield CHAT, {**BODIES[CHAT], "chat_template_kwargs": {"chat_template": path, **plain}, "user": path}
    yield CHAT, {**BODIES[CHAT], "response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}
    yield CHAT, {**BODIES[CHAT], "response_format": {"type": "grammar", "grammar": f"%import {path}\nstart: /a/"}}
    yield CHAT, {**BODIES[CHAT], "tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    for kind in ("image_url", "file", "input_audio"):
        part = {"type": kind, kind: {"url": f"file://{path}", "file_id": path, "data": path}}
        yield CHAT, {**BODIES[CHAT], "messages": [{"role": "user", "content": [part]}]}
    yield MESSAGES, {**BODIES[MESSAGES], "model": path}
    source = {"type": "url", "url": f"file://{path}"}
    yield (
        MESSAGES,
        {**BODIES[MESSAGES], "messages": [{"role": "user", "content": [{"type": "image", "source": source}]}]},
    )
    yield RESPONSES, {**BODIES[RESPONSES], "prompt": {"id": path}}
    yield RESPONSES, {**BODIES[RESPONSES], "previous_response_id": path}
    yield RESPONSES, {**BODIES[RESPONSES], "input": [{"type": "item_reference", "id": path}]}
    yield "/v1/completions", {**BODIES["/v1/completions"], "prompt": path, "suffix": path}
    yield "/v1/completions", {**BODIES["/v1/completions"], "prompt": path}
    yield "/tokenize", {"prompt": path}


def test_no_path_in_a_request_reaches_the_file_system(client, tmp_path):
    marker = "lily-must-not-look-here"
    (tmp_path / marker).write_text("the secret of this file")
    touched, watching = [], [True]

    def watch(event, arguments):
        # Events are open, os.listdir, os.scandir, os.mkdir and so on; an audit hook stays, so it can be told to rest.
        if watching and event.startswith(("open", "os.", "glob.", "shutil.", "pathlib.", "socket.connect")):
            touched.extend((event, one) for one in arguments if marker in str(one))

    sys.addaudithook(watch)
    try:
        with pytest.raises(FileNotFoundError):
            (tmp_path / f"{marker}-no").read_text()  # the hook sees what it is to see
        assert len(touched) == 1
        touched.clear()
        for path in (f"{tmp_path}/{marker}", f"../../../..{tmp_path}/{marker}"):
            for endpoint, body in bodies_naming(path):
                assert "secret" not in client.post(endpoint, json=body).text
            for endpoint in ("/v1/models/", "/", "/openapi.json/", "/v1/models/..%2f..%2f"):
                assert client.get(endpoint + path).status_code == 404
        assert touched == []
    finally:
        watching.clear()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("endpoint", BODIES)
def test_memory_that_a_prompt_would_need_and_there_is_not(client, monkeypatch, endpoint, stream):
    def refuse(self, ids, **options):
        raise MemoryLimitError("the prompt needs 3 GiB more than there are")

    with monkeypatch.context() as during:
        during.setattr(Model, "cached_session", refuse)
        response = client.post(endpoint, json={**BODIES[endpoint], "stream": stream})
    assert response.status_code == 413
    error = response.json()["error"]
    assert "3 GiB" in error["message"]
    assert error["type"] == ("request_too_large" if endpoint == MESSAGES else "invalid_request_error")
    assert client.post(endpoint, json={**BODIES[endpoint], "stream": stream}).status_code == 200


def test_a_prompt_that_is_far_too_long_holds_nobody_up(client, monkeypatch):
    """It is refused by its beginning, and while that is encoded the server answers others."""
    encoded, health = [], []
    encode, count = Tokenizer.encode, Tokenizer.count

    def watched(self, text, *most, **options):
        encoded.append(len(text))
        if len(text) > 1000 and not health:
            health.append(client.get("/health").json()["running"])
        return (count if most else encode)(self, text, *most, **options)

    monkeypatch.setattr(Tokenizer, "encode", watched)
    monkeypatch.setattr(Tokenizer, "count", watched)
    for text in ("word " * 400_000, "<|im_end|>" * 200_000):
        response = client.post(CHAT, json={"messages": [{"role": "user", "content": text}]})
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "context_length_exceeded"
    assert sum(encoded) <= 2 * (1 + 2 + 4) * 4 * 4096
    assert health == [0]  # and nobody waits for the engine
    messages = HELLO * 5000
    response = client.post(CHAT, json={"messages": messages})
    assert response.json()["error"]["code"] == "context_length_exceeded"


def test_errors_of_the_form_name_its_field(client):
    schema = {"type": "unheard-of"}
    wanted = {"type": "json_schema", "name": "x", "schema": schema}
    for endpoint, fields, param in (
        (CHAT, {"response_format": {"type": "json_schema", "json_schema": wanted}}, "response_format"),
        (RESPONSES, {"text": {"format": wanted}}, "text.format"),
        (CHAT, {"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        (CHAT, {"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0]"),
    ):
        response = client.post(endpoint, json={**BODIES[endpoint], **fields})
        assert response.status_code == 400, fields
        error = response.json()["error"]
        assert error["param"] == param
        assert "x-guidance" not in json.dumps(error)
        assert str(client.service.model.checkpoint.directory) not in json.dumps(error)


def test_other_threads_run_while_a_long_text_is_encoded(model):
    """The library's encoder of single texts holds the interpreter lock for all of it."""
    turns, done = [0], threading.Event()

    def count():
        while not done.wait(0.001):
            turns[0] += 1

    thread = threading.Thread(target=count)
    thread.start()
    ids = model.tokenizer.encode("ab cd\n" * 30_000)
    done.set()
    thread.join()
    assert turns[0] > 10
    assert ids == [*model.tokenizer.encode("ab cd\n" * 2000)] * 15


PARTS = [{"type": "text", "text": "x"}]


@pytest.mark.parametrize("path", [CHAT, MESSAGES, f"{MESSAGES}/count_tokens", RESPONSES, f"{RESPONSES}/input_tokens"])
@pytest.mark.parametrize("form", ["messages", "parts", "tools"])
def test_too_many_messages_are_refused_before_they_are_read(client, monkeypatch, path, form):
    read = []
    take = PartReader.text
    monkeypatch.setattr(
        PartReader, "text", lambda self, *given, **more: read.append(None) or take(self, *given, **more)
    )
    messages = HELLO
    if form == "messages":
        messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}] * 2049
    elif form == "parts":
        messages = [{"role": "user", "content": PARTS * 2000}] * 20
    tools = [{"type": "function", "name": f"f{at}", "input_schema": {}} for at in range(1025 if form == "tools" else 0)]
    body = {"tools": tools}
    body |= {"input": messages} if path.startswith(RESPONSES) else {"messages": messages}
    body |= {"max_tokens": 1} if path in (CHAT, MESSAGES) else {}
    response = client.post(path, json=body)
    assert response.status_code == 400, response.text
    assert len(read) <= 1  # the field `system`
    error = response.json()["error"]
    if form == "messages":
        if path.startswith(MESSAGES):
            assert "tokens > 4096 maximum" in error["message"]
        else:
            assert error["code"] == "context_length_exceeded"
    else:
        assert "are allowed" in error["message"]


def test_a_conversation_whose_client_has_gone_is_not_read_on(model):
    asked = []

    def check():
        asked.append(None)
        if len(asked) == 10:
            raise CancelledError("the client has disconnected")

    reader = PartReader(Warnings(), strict=False, check=check)
    with pytest.raises(CancelledError):
        read_chat_messages(HELLO * 100, reader, Warnings(), strict=False)
    steps = Steps(check, Charge(ByteBudget(1 << 20)))
    asked.clear()
    with pytest.raises(CancelledError):
        take_memory(model, HELLO * 100, steps)


def test_tokens_are_counted_beyond_the_context_up_to_a_bound(client):
    path = f"{MESSAGES}/count_tokens"
    counted = client.post(path, json={"messages": [{"role": "user", "content": "a word " * 20_000}]})
    assert counted.json()["input_tokens"] > 2 * 4096
    response = client.post(path, json={"messages": [{"role": "user", "content": "\u00e9\n" * 400_000}]})
    assert response.status_code == 400
    assert "prompt is too long" in response.json()["error"]["message"]
