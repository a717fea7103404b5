"""OpenAI's endpoints: answers, streams, usage, tools, errors, parallel clients, disconnects, limits, keys."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from evaluate import reference_results, skill_records
from lily import Sampling, Session

HELLO = [{"role": "user", "content": "Hello!"}]
CHAT = "/v1/chat/completions"


def ask(client, messages=HELLO, **fields):
    return client.post(CHAT, json={"model": "lily-tiny", "messages": messages, "temperature": 0, **fields})


def chunks_of(response):
    lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def calls_of(deltas):
    calls = []
    for piece in (piece for delta in deltas for piece in delta.get("tool_calls", [])):
        if "id" in piece:
            assert piece["index"] == len(calls)
            calls.append(dict(piece["function"]))
        else:
            calls[piece["index"]]["arguments"] += piece["function"]["arguments"]
    return calls


def expected(model, messages=HELLO, **options):
    return model.chat(messages=messages, sampling=Sampling.greedy(), **options).ask(max_tokens=300)


def test_an_answer_is_the_library_s(client, model):
    body = ask(client).json()
    answer = expected(model)
    message = body["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == (answer.content, answer.reasoning)
    assert body["choices"][0]["finish_reason"] == "stop"
    usage, counted = body["usage"], answer.done.usage
    assert usage["prompt_tokens"] == counted.prompt_tokens
    assert usage["completion_tokens"] == counted.completion_tokens
    assert usage["completion_tokens_details"]["reasoning_tokens"] == counted.reasoning_tokens


def test_a_stream_adds_up_to_the_answer_and_ends_once(client):
    whole = ask(client).json()["choices"][0]["message"]
    chunks = chunks_of(ask(client, stream=True, stream_options={"include_usage": True}))
    choices = [chunk["choices"][0] for chunk in chunks[:-1]]
    for field in ("content", "reasoning_content"):
        assert "".join(choice["delta"].get(field) or "" for choice in choices) == whole[field]
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["stop"]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] > 0
    assert choices[0]["delta"]["role"] == "assistant"


def test_the_second_identical_prompt_comes_from_the_cache(client):
    messages = [{"role": "user", "content": "Tell me about the weather in spring. " * 9}]
    ask(client, messages, max_tokens=1)
    usage = ask(client, messages, max_tokens=1).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] >= usage["prompt_tokens"] - 1


def test_a_tool_call_is_made_and_streamed_alike(client):
    good = {output["id"] for output in reference_results()["outputs"] if output["ok"]}
    record = next(one for one in skill_records() if one["check"] == "tool_calls" and one["id"] in good)
    fields = {"tools": record["tools"], "chat_template_kwargs": record["chat_template_kwargs"], "max_tokens": 300}
    choice = ask(client, record["messages"], **fields).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    functions = [call["function"] for call in choice["message"]["tool_calls"]]
    wanted = record["expected"]["tool_calls"]
    assert [(one["name"], json.loads(one["arguments"])) for one in functions] == [
        (call["name"], call["arguments"]) for call in wanted
    ]
    chunks = chunks_of(ask(client, record["messages"], stream=True, **fields))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert calls_of(deltas) == functions
    call = choice["message"]["tool_calls"][0]
    result = {"role": "tool", "tool_call_id": call["id"], "content": "4"}
    after = ask(client, [*record["messages"], choice["message"], result], **fields).json()
    assert after["choices"][0]["finish_reason"] in ("stop", "tool_calls")
    assert after["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": "warm"}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -3}, "max_tokens"),
        ({"stream_options": {"include_usage": 3}}, "include_usage"),
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"messages": []}, "messages"),
        ({"grammar": "root ::= x"}, "grammar"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"audio": {"voice": "alloy", "format": "wav"}}, "audio"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///x"}}]}]},
            "messages[0].content[0]",
        ),
        ({"messages": [{"role": "user", "content": "word " * 5000}]}, "messages"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_name_the_parameter(client, fields, param, stream):
    response = ask(client, **{"stream": stream, **fields})
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["type"]) == (param, "invalid_request_error")
    assert set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"no_such_field": 1}, "no_such_field"),
        ({"verbosity": "low"}, "verbosity"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"stream_options": {"no_such": 1}, "stream": True}, "no_such"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "1"}]}, "messages[0]"),
        ({"messages": [*HELLO, {"role": "system", "content": "x"}, *HELLO]}, "messages[1]"),
        (
            {"messages": [*HELLO, {"role": "tool", "tool_call_id": "1", "content": [{"type": "image_url"}]}]},
            "messages[1].content[0]",
        ),
    ],
)
def test_strict_servers_refuse_what_others_warn_of(client, strict_client, fields, param):
    refused = ask(strict_client, **fields)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == param
    answered = ask(client, **{"max_tokens": 1, **fields})
    assert answered.status_code == 200
    assert {"messages": "message"}.get(param, param) in answered.headers["x-lily-warnings"]


def test_other_errors(client):
    assert ask(client, model="gpt").status_code == 404
    assert client.post(CHAT, content=b"{").status_code == 400
    assert client.get("/v1/no").json()["error"]["code"] == "not_found"
    assert client.get(CHAT).status_code == 405
    page = client.get("/v1/models", headers={"origin": "https://example.org"})
    assert page.status_code == 403
    assert "access-control-allow-origin" not in page.headers


def test_top_p_of_0_is_greedy(client):
    greedy = ask(client, max_tokens=20).json()["choices"]
    assert ask(client, max_tokens=20, temperature=2, top_p=0).json()["choices"] == greedy


def test_developer_messages_are_system_messages(client):
    for role in ("system", "developer"):
        ask(client, [{"role": role, "content": "Be brief."}, *HELLO], max_tokens=1)
    usage = [
        ask(client, [{"role": role, "content": "Be brief."}, *HELLO], max_tokens=8).json()
        for role in ("system", "developer")
    ]
    assert usage[0]["usage"] == usage[1]["usage"]
    assert usage[0]["choices"] == usage[1]["choices"]


def test_parallel_clients_get_their_own_answers(client, model):
    conversations = [[{"role": "user", "content": f"What is {at} plus {2 * at}?"}] for at in range(8)]
    with ThreadPoolExecutor(8) as pool:
        bodies = list(pool.map(lambda messages: ask(client, messages, max_tokens=60).json(), conversations))
    for messages, body in zip(conversations, bodies, strict=True):
        answer = model.chat(messages=messages, sampling=Sampling.greedy()).ask(max_tokens=60)
        assert body["choices"][0]["message"]["content"] == answer.content


def slow_generation(monkeypatch, made):
    generation = Session.generation

    def slowed(self, *arguments, **options):
        one = generation(self, *arguments, **{**options, "stop_tokens": ()})
        mask = one.mask

        def wait():
            time.sleep(0.02)
            return None if mask is None else mask()

        one.mask = wait
        made.append(one)
        return one

    monkeypatch.setattr(Session, "generation", slowed)


def test_generation_stops_when_the_client_goes(client, monkeypatch):
    made, at_cancel = [], []
    slow_generation(monkeypatch, made)
    service = client.service
    from lily.server.engine import Ticket

    cancel = Ticket.cancel

    def recorded(self):
        at_cancel.append(len(made[-1].tokens))
        cancel(self)

    monkeypatch.setattr(Ticket, "cancel", recorded)
    fields = {"messages": HELLO, "stream": True, "max_tokens": 1000}
    with client.stream("POST", CHAT, json=fields) as response:
        lines = response.iter_lines()
        for _ in range(6):
            next(lines)
    deadline = time.monotonic() + 10
    while service.engine.running and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not service.engine.running
    assert len(made[-1].tokens) <= at_cancel[0] + 2 < 900
    assert client.get("/health").json()["status"] == "ok"


def test_a_full_queue_is_refused(start, monkeypatch):
    made = []
    slow_generation(monkeypatch, made)
    with start(max_queue=1) as client:
        threads = [threading.Thread(target=ask, args=(client,), kwargs={"max_tokens": 50}) for _ in range(2)]
        for thread, attribute in zip(threads, ("running", "waiting"), strict=True):
            thread.start()
            while not getattr(client.service.engine, attribute):
                time.sleep(0.005)
        refused = ask(client)
        for thread in threads:
            thread.join()
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) > 0
    assert refused.json()["error"]["type"] == "rate_limit_error"


def test_keys_and_size_limit(start):
    with start(api_keys=("first", "second"), max_request_bytes=2000) as client:
        assert client.get("/health").status_code == 200
        assert client.get("/v1/models").status_code == 401
        assert client.get("/v1/models", headers={"authorization": "Bearer firs"}).status_code == 401
        assert client.get("/v1/models", headers={"authorization": "Bearer second"}).status_code == 200
        assert client.get("/v1/models", headers={"x-api-key": "first"}).status_code == 200
        client.headers["x-api-key"] = "first"
        assert client.post("/tokenize", json={"prompt": "x" * 3000}).status_code == 413
        for size, status in ((1999, 200), (2000, 200), (2001, 413), (5000, 413)):
            parts = [b'{"prompt":"', b"x" * (size - 13), b'"}']
            assert client.post("/tokenize", content=b"".join(parts)).status_code == status
            assert client.post("/tokenize", content=iter(parts)).status_code == status  # its length is not told


def test_control_tokens_are_text_of_raw_completions_only(client, model):
    token = model.tokenizer.token_id("<|im_start|>")
    assert model.tokenizer.is_special(token)
    fields = {"max_tokens": 3, "temperature": 0, "logit_bias": {str(token): 100}}
    raw = client.post("/v1/completions", json={"prompt": "Hello", "logprobs": 1, **fields}).json()["choices"][0]
    assert raw["text"] == "<|im_start|>" * 3
    assert raw["logprobs"]["tokens"] == ["<|im_start|>"] * 3
    answer = client.post(CHAT, json={"messages": HELLO, "enable_thinking": False, **fields}).json()
    assert answer["choices"][0]["message"]["content"] == ""
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 3


def test_completions_tokenize_and_metrics(client, model):
    ids = client.post("/tokenize", json={"prompt": "Once upon a time"}).json()["tokens"]
    assert ids == model.tokenizer.encode("Once upon a time")
    assert client.post("/detokenize", json={"tokens": ids}).json()["prompt"] == "Once upon a time"
    with model.prefill(ids) as session:
        text = model.tokenizer.decode(list(session.generate(12, sampling=Sampling.greedy())))
    fields = {"max_tokens": 12, "temperature": 0}
    for prompt in ("Once upon a time", ids):
        body = client.post("/v1/completions", json={"prompt": prompt, **fields}).json()
        assert body["choices"][0]["text"] == text
    chunks = chunks_of(client.post("/v1/completions", json={"prompt": ids, "stream": True, **fields}))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == text
    assert b"lily_tokens_total" in client.get("/metrics").content


def test_the_openai_client(client):
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{client.base_url}/v1", api_key="none", max_retries=0) as api:
        assert [one.id for one in api.models.list()] == ["lily-tiny"]
        whole = api.chat.completions.create(model="lily-tiny", messages=HELLO, temperature=0)
        stream = api.chat.completions.create(model="lily-tiny", messages=HELLO, temperature=0, stream=True)
        pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
        assert "".join(pieces) == whole.choices[0].message.content
        with pytest.raises(openai.BadRequestError) as caught:
            api.chat.completions.create(model="lily-tiny", messages=[])
        assert caught.value.param == "messages"


def counted(client, status, endpoint="chat_completions"):
    line = f'lily_requests_total{{endpoint="{endpoint}",status="{status}"}} '
    text = client.get("/metrics").text
    return float(text.partition(line)[2].partition("\n")[0] or 0)


def test_streams_that_fail_later_are_counted_as_failed(client, monkeypatch):
    from lily.chat import ContentDelta
    from lily.server import chat_completions

    def failing(service, wanted, _, *, call_deltas):
        def work(ticket):
            yield 0, ContentDelta("Hel")
            raise MemoryError("planted")

        return work

    before = [counted(client, status) for status in (200, 500)]
    monkeypatch.setattr(chat_completions, "chat_work", failing)
    response = ask(client, stream=True)
    monkeypatch.undo()
    assert '"type":"server_error"' in response.text
    assert "[DONE]" not in response.text
    assert [counted(client, status) for status in (200, 500)] == [before[0], before[1] + 1]
    ask(client, stream=True, max_tokens=1)
    assert counted(client, 200) == before[0] + 1


def test_streams_tell_how_long_they_waited(client, monkeypatch):
    slow_generation(monkeypatch, [])
    fields = {"stream": True, "max_tokens": 10, "stream_options": {"include_usage": True}}
    with ThreadPoolExecutor(2) as pool:
        streams = [pool.submit(ask, client, **fields) for _ in range(2)]
    ends = [chunks_of(stream.result())[-1] for stream in streams]
    waits = sorted(end["timings"]["queue_seconds"] for end in ends)
    assert waits[1] > 0.15  # ten tokens of 20 ms each were before it
    assert waits[0] < waits[1]


def test_calls_of_a_history_are_never_refused(client):
    system = [{"role": "system", "content": "a"}, {"role": "developer", "content": "b"}]
    result = {"role": "tool", "tool_call_id": "1", "content": "x"}
    history = [*HELLO, {"role": "assistant", "tool_calls": ["f"]}, result]
    assert ask(client, [*system, *history]).status_code == 200


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
def test_several_choices_come_from_one_prefill_and_in_turns(client, model, path):
    prompt = "Tell me of the seven seas and of their many ships. " * 5
    request = {"prompt": prompt} if path != CHAT else {"messages": [{"role": "user", "content": prompt}]}
    fields = {**request, "n": 3, "max_tokens": 20, "temperature": 2.5, "seed": 7}
    fields["logit_bias"] = {str(token): -100 for token in model.stop_tokens}
    body = client.post(path, json=fields).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    text = {CHAT: lambda choice: choice["message"].get("reasoning_content")}.get(path, lambda choice: choice["text"])
    texts = [text(choice) for choice in body["choices"]]
    assert len(set(texts)) == 3
    single = client.post(path, json={**fields, "n": 1, "seed": 8}).json()
    assert text(single["choices"][0]) == texts[1]
    assert single["usage"]["prompt_tokens"] == body["usage"]["prompt_tokens"]
    chunks = chunks_of(client.post(path, json={**fields, "stream": True, "stream_options": {"include_usage": True}}))
    pieces = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    for index in range(3):
        own = [one for one in pieces if one["index"] == index]
        parts = [one.get("text", one.get("delta", {}).get("reasoning_content")) or "" for one in own]
        assert "".join(parts) == texts[index]
        assert [one["finish_reason"] for one in own if one["finish_reason"]] == ["length"]
    order = [one["index"] for one in pieces]
    assert order.index(2) < len(order) - order[::-1].index(0) - 1  # the last begins before the first ends
    assert chunks[-1]["usage"]["completion_tokens"] == 60


def test_the_openai_client_makes_a_tool_round(client):
    openai = pytest.importorskip("openai")
    good = {output["id"] for output in reference_results()["outputs"] if output["ok"]}
    record = next(
        one
        for one in skill_records()
        if one["check"] == "tool_calls" and one["id"] in good and len(one["messages"]) == 1
    )
    fields = {"model": "lily-tiny", "temperature": 0, "max_tokens": 400, "tools": record["tools"]}
    fields["extra_body"] = {"chat_template_kwargs": record["chat_template_kwargs"]}
    wanted = [(call["name"], call["arguments"]) for call in record["expected"]["tool_calls"]]
    with openai.OpenAI(base_url=f"{client.base_url}/v1", api_key="none", max_retries=0) as api:
        whole = api.chat.completions.create(messages=record["messages"], **fields).choices[0].message
        with api.chat.completions.stream(messages=record["messages"], **fields) as stream:
            final = stream.get_final_completion().choices[0]
        for message in (whole, final.message):
            functions = [call.function for call in message.tool_calls]
            assert [(one.name, json.loads(one.arguments)) for one in functions] == wanted
        assert final.finish_reason == "tool_calls"
        results = [{"role": "tool", "tool_call_id": call.id, "content": "4"} for call in whole.tool_calls]
        after = api.chat.completions.create(messages=[*record["messages"], whole, *results], **fields)
        assert after.choices[0].finish_reason in ("stop", "tool_calls")
        assert after.usage.prompt_tokens_details.cached_tokens > 0


def test_the_openai_client_forces_calls_and_forms_and_cancels(client):
    openai = pytest.importorskip("openai")
    pytest.importorskip("llguidance")
    parameters = {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"]}
    tool = {"type": "function", "function": {"name": "light", "parameters": parameters}}
    form = {
        "type": "json_schema",
        "json_schema": {"name": "x", "schema": {**parameters, "additionalProperties": False}},
    }
    fields = {"model": "lily-tiny", "messages": HELLO, "temperature": 0, "reasoning_effort": "none"}
    with openai.OpenAI(base_url=f"{client.base_url}/v1", api_key="none", max_retries=0) as api:
        choice = {"type": "function", "function": {"name": "light"}}
        forced = api.chat.completions.create(**fields, tools=[tool], tool_choice=choice).choices[0]
        assert forced.message.tool_calls[0].function.name == "light"
        assert isinstance(json.loads(forced.message.tool_calls[0].function.arguments)["on"], bool)
        formed = api.chat.completions.create(**fields, response_format=form, max_tokens=100)
        assert set(json.loads(formed.choices[0].message.content)) == {"on"}
        banned = {str(token): -100 for token in client.service.model.stop_tokens}
        stream = api.chat.completions.create(**fields, stream=True, logit_bias=banned)
        next(stream)
        stream.close()
    deadline = time.monotonic() + 10
    while client.service.engine.running and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not client.service.engine.running


def test_streams_tell_the_progress_of_the_prompt_while_they_wait(start, monkeypatch):
    from lily.server.engine import Ticket

    report = Ticket.report

    def slowed(self, done, total):
        report(self, done, total)
        time.sleep(0.1)

    monkeypatch.setattr(Ticket, "report", slowed)
    messages = [{"role": "user", "content": "A long prompt about nothing in particular. " * 150}]
    with start(keep_alive_seconds=0.02) as client:
        text = ask(client, messages, stream=True, max_tokens=1).text
    comments = [line for line in text.splitlines() if line.startswith(": prefill ")]
    done = [tuple(map(int, line[10:].split("/"))) for line in comments]
    assert len({one for one, _ in done}) > 2
    assert done == sorted(done)
    assert len({total for _, total in done}) == 1
    assert text.endswith("data: [DONE]\n\n")


def test_shutdown_ends_what_is_in_work_and_what_waits(model, start, monkeypatch):
    slow_generation(monkeypatch, [])
    answers = []
    with start() as client:
        fields = {"stream": True, "max_tokens": 4000}
        threads = [threading.Thread(target=lambda: answers.append(ask(client, **fields).text)) for _ in range(2)]
        for thread, attribute in zip(threads, ("running", "waiting"), strict=True):
            thread.start()
            while not getattr(client.service.engine, attribute):
                time.sleep(0.005)
        engine = client.service.engine
        began = time.monotonic()
        engine.close()
        for thread in threads:
            thread.join()
        refused = ask(client)
    assert time.monotonic() - began < 20
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) > 0
    assert len(answers) == 2
    assert all('"code":"unavailable"' in text for text in answers)
