"""Anthropic's endpoints: answers, streams, tool rounds, counts, errors, and the billing line that must not matter."""

import pytest

from evaluate import reference_results, skill_records
from lily import Model, Session

HELLO = [{"role": "user", "content": "Hello!"}]


def ask(client, path="/v1/messages", **fields):
    limit = {} if path.endswith("count_tokens") else {"max_tokens": 200, "temperature": 0}
    return client.post(path, json={"model": "lily-tiny", "messages": HELLO, **limit, **fields})


def test_messages_and_their_count(client):
    body = ask(client).json()
    assert [block["type"] for block in body["content"]] == ["text"]
    assert body["stop_reason"] == "end_turn"
    usage = body["usage"]
    count = ask(client, "/v1/messages/count_tokens").json()["input_tokens"]
    assert count == usage["input_tokens"] + usage["cache_read_input_tokens"]


def test_thinking_comes_first(client):
    body = ask(client, thinking={"type": "enabled", "budget_tokens": 1024}).json()
    assert [block["type"] for block in body["content"]] == ["thinking", "text"]


def test_billing_lines_do_not_change_an_id(client, monkeypatch):
    asked = []
    cached_session = Model.cached_session
    monkeypatch.setattr(
        Model, "cached_session", lambda self, ids, **more: asked.append(list(ids)) or cached_session(self, ids, **more)
    )
    for line in ("a1", "b2c3", "x" * 80):
        header = {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2; cch={line}"}
        for system in ([header, {"type": "text", "text": "Go."}], f"{header['text']}\nGo.", "Go."):
            assert ask(client, system=system, max_tokens=1).status_code == 200
    assert len(asked) == 9
    assert all(ids == asked[0] for ids in asked)


def test_billing_lines_do_not_matter(client):
    for at, line in enumerate(("a1", "b2c3")):
        system = [{"type": "text", "text": f"x-anthropic-billing-header: cch={line}"}, {"type": "text", "text": "Go."}]
        usage = ask(client, system=system, max_tokens=2).json()["usage"]
        assert at == 0 or usage["input_tokens"] == 0


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_of_no_tokens_fills_the_cache(client, stream):
    """As clients ask for ahead of the request that is to be answered."""
    system = f"Be brief. {'Rules are rules. ' * 40}{stream}"
    response = ask(client, system=system, max_tokens=0, stream=stream)
    assert response.status_code == 200, response.text
    if stream:
        assert '"stop_reason": "max_tokens"' in response.text.replace('":"', '": "')
        assert "content_block_start" not in response.text
    else:
        body = response.json()
        assert (body["content"], body["stop_reason"], body["usage"]["output_tokens"]) == ([], "max_tokens", 0)
    usage = ask(client, system=system, max_tokens=1).json()["usage"]
    assert usage["cache_read_input_tokens"] > 100 > usage["input_tokens"]


def test_errors_have_anthropic_s_shape(client):
    for fields, name in (
        ({"max_tokens": 0.5}, "max_tokens"),
        ({"compaction": {"type": "summarize"}}, "compaction"),
        ({"thread": {"type": "continue", "previous_message_id": "x"}}, "thread"),
        ({"thinking": {"type": "some"}}, "thinking"),
        ({"tool_choice": {"type": "auto", "disable_parallel_tool_use": "x"}}, "disable_parallel_tool_use"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages.0.content.0"),
    ):
        response = ask(client, **fields)
        body = response.json()
        assert (response.status_code, body["type"]) == (400, "error")
        assert body["error"]["type"] == "invalid_request_error"
        assert name in body["error"]["message"]


def test_the_anthropic_client_makes_a_tool_round(client):
    anthropic = pytest.importorskip("anthropic")
    good = {output["id"] for output in reference_results()["outputs"] if output["ok"]}
    record = next(
        one
        for one in skill_records()
        if one["check"] == "tool_calls"
        and one["id"] in good
        and one["chat_template_kwargs"].get("enable_thinking") is False
        and one["messages"][0]["role"] == "user"
        and len(one["messages"]) == 1
    )
    functions = [tool["function"] for tool in record["tools"]]
    tools = [
        {"name": one["name"], "description": one["description"], "input_schema": one["parameters"]} for one in functions
    ]
    fields = {"model": "lily-tiny", "max_tokens": 300, "tools": tools, "extra_body": {"temperature": 0}}
    with anthropic.Anthropic(base_url=str(client.base_url), api_key="none", max_retries=0) as api:
        whole = api.messages.create(messages=record["messages"], **fields)
        with api.messages.stream(messages=record["messages"], **fields) as stream:
            streamed = stream.get_final_message()
        calls = [block for block in whole.content if block.type == "tool_use"]
        expected = record["expected"]["tool_calls"]
        assert [(one.name, one.input) for one in calls] == [(one["name"], one["arguments"]) for one in expected]
        assert [block.input for block in streamed.content if block.type == "tool_use"] == [one.input for one in calls]
        assert whole.stop_reason == streamed.stop_reason == "tool_use"
        results = [{"type": "tool_result", "tool_use_id": one.id, "content": "4"} for one in calls]
        history = [{"role": "assistant", "content": whole.content}, {"role": "user", "content": results}]
        after = api.messages.create(messages=[*record["messages"], *history], **fields)
        assert after.stop_reason in ("end_turn", "tool_use")
        assert after.usage.cache_read_input_tokens > 0


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
@pytest.mark.parametrize("system", [{}, {"system": "Be brief."}])
def test_errors_name_the_message_of_the_request(strict_client, path, system):
    client = strict_client
    results = [{"type": "tool_result", "tool_use_id": str(at), "content": "x"} for at in range(2)]
    for messages, place in (
        ([{"role": "user", "content": results}, *HELLO], "messages.0"),
        ([{"role": "user", "content": [*results, {"type": "text", "text": "x"}]}], "messages.0"),
    ):
        response = ask(client, path, messages=messages, **system)
        assert response.status_code == 400
        assert f"{place} is the result of a tool" in response.json()["error"]["message"]


def test_errors_of_tools_are_told_to_the_model(client):
    call = {"type": "tool_use", "id": "1", "name": "f", "input": {}}

    def count(content, **more):
        result = {"type": "tool_result", "tool_use_id": "1", "content": content, **more}
        history = [*HELLO, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
        return ask(client, "/v1/messages/count_tokens", messages=history).json()["input_tokens"]

    assert count("no such file", is_error=True) == count("Error: no such file") > count("no such file")
    assert count("Error: gone", is_error=True) == count("Error: gone", is_error=False)


@pytest.mark.parametrize(
    "fields",
    [
        {"seed": 7, "temperature": 1},
        {"min_p": 0.2, "temperature": 1, "seed": 3},
        {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.5},
        {"logit_bias": {"40": -100}},
    ],
    ids=str,
)
def test_sampling_fields_of_the_other_apis_count(client, monkeypatch, fields):
    seen = []
    generation = Session.generation

    def observed(self, *given, **more):
        seen.append(more["sampling"])
        return generation(self, *given, **more)

    monkeypatch.setattr(Session, "generation", observed)
    body = {"model": "lily-tiny", "max_tokens": 2, "messages": [{"role": "user", "content": "Hello!"}]}
    response = client.post("/v1/messages", json={**body, **fields})
    assert response.status_code == 200
    assert "warnings" not in response.json()
    (sampling,) = seen
    for name, value in fields.items():
        assert getattr(sampling, name) == ({40: -float("inf")} if name == "logit_bias" else value)
