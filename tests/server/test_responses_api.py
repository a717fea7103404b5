"""OpenAI's Responses API: answers, streams and their events, tool rounds, what is refused."""

import json

import pytest

from evaluate import reference_results, skill_records

QUIET = {"reasoning": {"effort": "none"}}


def ask(client, given="Hello!", **fields):
    return client.post("/v1/responses", json={"model": "lily-tiny", "input": given, "temperature": 0, **fields})


def events_of(response):
    assert response.status_code == 200, response.text
    blocks = [block.split("\n") for block in response.text.split("\n\n") if block and not block.startswith(":")]
    events = [json.loads(lines[1].removeprefix("data: ")) for lines in blocks]
    assert [lines[0].removeprefix("event: ") for lines in blocks] == [event["type"] for event in events]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def comparable(response):
    """A response without what differs from call to call."""
    items = [{key: value for key, value in item.items() if key not in ("id", "call_id")} for item in response["output"]]
    return items, response["status"], response["usage"]["output_tokens"], response["incomplete_details"]


@pytest.fixture(scope="module")
def record():
    good = {output["id"] for output in reference_results()["outputs"] if output["ok"]}
    return next(
        one
        for one in skill_records()
        if one["check"] == "tool_calls"
        and one["id"] in good
        and one["chat_template_kwargs"].get("enable_thinking") is False
        and [message["role"] for message in one["messages"]] == ["user"]
    )


def flat(tools):
    return [{"type": "function", **tool["function"]} for tool in tools]


def test_it_is_the_answer_of_chat_completions(client):
    for thinking in (True, False):
        fields = {} if thinking else QUIET
        body = ask(client, **fields).json()
        request = {"messages": [{"role": "user", "content": "Hello!"}], "temperature": 0}
        request["chat_template_kwargs"] = {"enable_thinking": thinking}
        chat = client.post("/v1/chat/completions", json=request).json()
        message = chat["choices"][0]["message"]
        assert [item["type"] for item in body["output"]] == (["reasoning"] if thinking else []) + ["message"]
        assert body["output"][-1]["content"][0]["text"] == message["content"]
        if thinking:
            assert body["output"][0]["content"][0]["text"] == message["reasoning_content"]
        assert body["usage"]["output_tokens"] == chat["usage"]["completion_tokens"]
        assert (body["object"], body["status"], body["error"]) == ("response", "completed", None)


@pytest.mark.parametrize("fields", [{}, QUIET, {"max_output_tokens": 3}, {"include": ["message.output_text.logprobs"]}])
def test_a_stream_adds_up_to_the_response(client, fields):
    whole = ask(client, **fields).json()
    events = events_of(ask(client, stream=True, **fields))
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1]["type"] == f"response.{whole['status']}"
    assert comparable(events[-1]["response"]) == comparable(whole)
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == events[-1]["response"]["output"]
    for at, item in enumerate(done):
        kind = {"reasoning": "reasoning_text", "message": "output_text"}[item["type"]]
        deltas = [one for one in events if one["type"] == f"response.{kind}.delta" and one["output_index"] == at]
        assert "".join(one["delta"] for one in deltas) == item["content"][0]["text"]
        assert {one["item_id"] for one in deltas} == {item["id"]}
    if "max_output_tokens" in fields:
        assert whole["incomplete_details"] == {"reason": "max_output_tokens"}
        assert done[-1]["status"] == "incomplete"
    if "include" in fields:
        assert len(done[-1]["content"][0]["logprobs"]) > 2


def test_a_tool_round(client, record):
    fields = {"tools": flat(record["tools"]), "max_output_tokens": 300, **QUIET}
    question = {"role": "user", "content": [{"type": "input_text", "text": record["messages"][0]["content"]}]}
    body = ask(client, [question], **fields).json()
    calls = [item for item in body["output"] if item["type"] == "function_call"]
    wanted = [(call["name"], call["arguments"]) for call in record["expected"]["tool_calls"]]
    assert [(call["name"], json.loads(call["arguments"])) for call in calls] == wanted
    events = events_of(ask(client, [question], stream=True, **fields))
    assert comparable(events[-1]["response"]) == comparable(body)
    deltas = [event for event in events if event["type"] == "response.function_call_arguments.delta"]
    assert len(deltas) > len(calls)
    results = [{"type": "function_call_output", "call_id": call["call_id"], "output": "4"} for call in calls]
    after = ask(client, [question, *body["output"], *results], **fields).json()
    assert after["status"] == "completed"
    # The answer's own ids are found again: only the results are new.
    assert after["usage"]["input_tokens_details"]["cached_tokens"] >= body["usage"]["total_tokens"]


def test_reasoning_items_are_part_of_the_answer_they_belong_to(client):
    question = {"role": "user", "content": "Hello!"}
    body = ask(client, [question]).json()
    call = {"type": "function_call", "name": "f", "call_id": "1", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "4"}]}
    reasoning = body["output"][0]

    def tokens(*items):
        return ask(client, [question, *items], max_output_tokens=1).json()["usage"]["input_tokens"]

    thought = len(client.post("/tokenize", json={"prompt": reasoning["content"][0]["text"]}).json()["tokens"])
    assert abs(tokens(reasoning, call, result) - tokens(call, result) - thought) <= 2


def test_instructions_and_schemas(client):
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    form = {"format": {"type": "json_schema", "name": "x", "schema": {**schema, "additionalProperties": False}}}
    body = ask(client, instructions="Answer in JSON.", text=form, max_output_tokens=60, **QUIET).json()
    assert set(json.loads(body["output"][0]["content"][0]["text"])) == {"a"}
    assert (body["instructions"], body["text"]) == ("Answer in JSON.", form)
    system = ask(client, [{"role": "developer", "content": "Answer in JSON."}, {"role": "user", "content": "Hello!"}])
    assert (
        system.json()["usage"]["input_tokens"]
        == ask(client, instructions="Answer in JSON.").json()["usage"]["input_tokens"]
    )


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "c"}, "conversation"),
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"tool_choice": {"type": "function"}}, "tool_choice"),
        ({"input": None}, "input"),
        ({"input": 3}, "input"),
        ({"n": 2}, "n"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content[0]"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format"),
    ],
)
def test_errors_name_the_parameter(client, fields, param):
    for stream in (False, True):
        response = ask(client, **{"stream": stream, **fields})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"instructions": "x", "input": [{"type": "function_call_output", "call_id": "1", "output": "x"}]}, "input[0]"),
        ({"input": [{"role": "user", "content": "Hi"}, {"type": "dream", "id": "x"}]}, "input[1]"),
        ({"reasoning": {"effrt": "low"}}, "effrt"),
    ],
)
def test_strict_servers_refuse_what_others_warn_of(client, strict_client, fields, param):
    refused = ask(strict_client, **fields)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == param
    answered = ask(client, max_output_tokens=1, **fields)
    assert answered.status_code == 200
    assert answered.headers["x-lily-warnings"]
    assert answered.json()["warnings"]


def test_streams_that_fail_say_so(client, monkeypatch):
    from lily.chat import ContentDelta
    from lily.server import responses

    def failing(service, wanted, _, *, call_deltas):
        def work(ticket):
            yield 0, ContentDelta("Hel")
            raise MemoryError("planted")

        return work

    monkeypatch.setattr(responses, "chat_work", failing)
    events = events_of(ask(client, stream=True))
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    assert events[-1]["response"]["error"]["code"] == "internal_error"


def test_the_openai_client(client, record):
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{client.base_url}/v1", api_key="none", max_retries=0) as api:
        fields = {"model": "lily-tiny", "temperature": 0, "max_output_tokens": 300, "tools": flat(record["tools"])}
        fields["reasoning"] = {"effort": "none"}
        question = {"role": "user", "content": record["messages"][0]["content"]}
        whole = api.responses.create(input=[question], **fields)
        with api.responses.stream(input=[question], **fields) as stream:
            kinds = {event.type for event in stream}
            final = stream.get_final_response()
        assert "response.function_call_arguments.delta" in kinds
        calls = [item for item in whole.output if item.type == "function_call"]
        assert calls
        assert [item.arguments for item in final.output] == [item.arguments for item in whole.output]
        results = [{"type": "function_call_output", "call_id": call.call_id, "output": "4"} for call in calls]
        after = api.responses.create(input=[question, *whole.output, *results], **fields)
        assert after.output_text or after.output
        assert api.responses.create(model="lily-tiny", input="Hello!", reasoning={"effort": "none"}).output_text
