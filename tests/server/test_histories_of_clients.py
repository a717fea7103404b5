"""Histories as clients keep them, whatever went wrong in them: they are answered, and what can be read is read."""

import base64

import pytest

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
ASK = {"role": "user", "content": "What now?"}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}


def call(arguments, **more):
    function = {"name": "f", "arguments": arguments}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "type": "function", "function": function, **more}],
    }


def result(content, **more):
    return {"role": "tool", "tool_call_id": "1", "content": content, **more}


def history(*messages):
    return {"messages": [{"role": "user", "content": "Begin."}, *messages]}


@pytest.mark.parametrize(
    ("messages", "texts"),
    [
        ([call({"a": 7}), result("four")], ["<parameter=a>\n7\n", "four"]),
        ([call("", id=5), result("four", tool_call_id=5)], ["<function=f>", "four"]),
        ([call("{}"), result(None)], ["<tool_response>\n\n</tool_response>"]),
        ([call("{}"), result({"deep": [1, None]})], ['{"deep": [1, null]}']),
        ([call("{}"), result([])], ["<tool_response>\n\n</tool_response>"]),
        ([call("{}"), result([{"type": "text", "text": "AB"}, "CD"])], ["ABCD"]),
        ([call("{}"), result([{"type": "image_url", "image_url": {"url": "x"}}])], ["[image: not readable here]"]),
        ([result("orphan"), ASK], ["orphan", "What now?"]),
        ([call("{}")], ["(no result)"]),
        ([call("{}"), ASK], ["<function=f>", "What now?"]),
        ([{"role": "assistant", "content": "Hm"}, ASK, {"role": "assistant", "content": ""}], ["Hm", "What now?"]),
        ([ASK, {"role": "assistant", "content": None, "tool_calls": []}], ["What now?"]),
        ([ASK, {"role": "assistant"}], ["What now?"]),
        ([{"role": "user", "content": None}, {"role": "user", "content": []}, ASK], ["What now?"]),
        ([{"role": "assistant", "content": [{"type": "refusal", "refusal": "I will not."}]}, ASK], ["I will not."]),
        ([{"role": "assistant", "content": None, "refusal": "I will not.", "audio": None}, ASK], ["I will not."]),
        (
            [
                {"role": "user", "name": "eve", "content": [{"type": "text", "text": "AB"}, {"type": "image_url"}]},
                {"role": "assistant", "content": "Nice.", "annotations": []},
                ASK,
            ],
            ["AB[image: not readable here]", "Nice."],
        ),
        (
            [
                {"role": "assistant", "function_call": {"name": "f", "arguments": '{"a": 7}'}},
                {"role": "function", "name": "f", "content": "four"},
            ],
            ["<parameter=a>\n7\n", "four"],
        ),
        (
            [
                {
                    "role": "assistant",
                    "tool_calls": [{"id": "1", "type": "custom", "custom": {"name": "f", "input": "A B"}}],
                },
                result("four"),
            ],
            ["<parameter=input>\nA B\n", "four"],
        ),
        ([{"role": "assistant", "content": "x", "tool_calls": [None, {"function": {}}]}, ASK], ["What now?"]),
        ([{"role": "developer", "content": "Be quick."}, ASK], ["<|im_start|>user\nBe quick."]),
        (
            [
                {
                    "role": "user",
                    "content": [
                        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AA"}},
                        {"type": "file", "file": {"filename": "a.txt", "file_data": "data:text/plain;base64,QUJD"}},
                    ],
                }
            ],
            ["[file a.pdf: not readable here]", "a.txt\nABC"],
        ),
    ],
)
def test_chat_histories(prompt_of, messages, texts):
    prompt = prompt_of(CHAT, history(*messages))
    for text in texts:
        assert text in prompt
    assert prompt.rstrip().endswith("<|im_start|>assistant\n<think>")


@pytest.mark.parametrize(
    "thought",
    [
        {"reasoning_content": "I wondered."},
        {"reasoning": "I wondered."},
        {"thinking": "I wondered."},
        {"thought": "I wondered."},
        {
            "reasoning_details": [
                {"type": "reasoning.text", "text": "I "},
                {"type": "reasoning.text", "text": "wondered."},
            ]
        },
        {"reasoning_details": [{"type": "reasoning.summary", "summary": "I wondered."}]},
        {"thinking_blocks": [{"type": "thinking", "thinking": "I wondered.", "signature": "x"}]},
        {"provider_specific_fields": {"reasoning_content": "I wondered.", "citations": None}},
        {"content": [{"type": "thinking", "thinking": "I wondered."}, {"type": "text", "text": "So."}]},
    ],
)
def test_the_thinking_of_a_history_reaches_the_prompt(prompt_of, thought):
    answer = {**call("{}"), "content": "So.", **thought}
    assert "<think>\nI wondered.\n</think>\n\nSo.\n\n<tool_call>" in prompt_of(CHAT, history(answer, result("4")))


def test_results_in_another_order(prompt_of):
    calls = [{"id": name, "type": "function", "function": {"name": "f", "arguments": "{}"}} for name in "ab"]
    results = [{"role": "tool", "tool_call_id": name, "content": f"of {name}"} for name in "ba"]
    prompt = prompt_of(CHAT, history({"role": "assistant", "tool_calls": calls}, *results))
    assert prompt.index("of a") < prompt.index("of b")


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([{"role": "system", "content": "Sing."}], "<|im_start|>user\nSing."),
        ([{"role": "assistant", "content": "Hm."}, ASK], "Hm.<|im_end|>\n<|im_start|>user\nWhat now?"),
        ([{"role": "system", "content": "S"}, call("{}"), result("four")], "four"),
        ([result("four")], "four"),
    ],
)
def test_conversations_whose_beginning_was_cut_off(prompt_of, messages, text):
    assert text in prompt_of(CHAT, {"messages": messages})


@pytest.mark.parametrize("kind", ["image_url", "input_image", "input_audio", "video_url"])
def test_what_the_user_shows_now_is_refused(client, kind):
    message = {"role": "user", "content": [{"type": "text", "text": "See"}, {"type": kind}]}
    response = client.post(CHAT, json=history({"role": "assistant", "content": "Hm"}, message))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "messages[2].content[1]"


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
def test_an_image_beside_results_does_not_end_the_session(client, prompt_of, path):
    """Agents put there what a tool made, and send it with every request from then on."""
    call = {"type": "tool_use", "id": "1", "name": "look", "input": {}}
    results = [{"type": "tool_result", "tool_use_id": "1", "content": "Seen."}, IMAGE]
    messages = [ASK, {"role": "assistant", "content": [call]}, {"role": "user", "content": results}]
    prompt = prompt_of(path, {"messages": messages})
    assert prompt.index("Seen.") < prompt.index("[image: not readable here]")


def test_an_image_that_was_refused_does_not_end_the_session(client):
    """Clients keep the message that got an error; the next one is answered."""
    for path, field, part in (
        (CHAT, "messages", {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}),
        (MESSAGES, "messages", IMAGE),
        (RESPONSES, "input", {"type": "input_image", "image_url": "data:image/png;base64,AA"}),
    ):
        limit = "max_output_tokens" if path == RESPONSES else "max_tokens"
        shown = [{"role": "user", "content": [part]}]
        for messages, status in ((shown, 400), ([*shown, ASK], 200)):
            response = client.post(path, json={"model": "lily-tiny", limit: 1, field: messages})
            assert response.status_code == status
        assert "image" in response.headers["x-lily-warnings"]


BLOCKS = [
    (
        {
            "type": "document",
            "source": {"type": "text", "media_type": "text/plain", "data": "plain words"},
            "title": "T",
        },
        "T\nplain words",
    ),
    ({"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "inner"}]}}, "inner"),
    (
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "AA"}, "title": "R"},
        "[document R: not readable here]",
    ),
    (
        {"type": "search_result", "title": "T", "source": "s", "content": [{"type": "text", "text": "found"}]},
        "T\ns\nfound",
    ),
    ({"type": "tool_reference", "tool_name": "grep"}, "[tool_reference: grep]"),
    ({"type": "container_upload", "file_id": "file_1"}, "[container_upload file_1: not readable here]"),
    (
        {"type": "text", "text": "words", "citations": None, "cache_control": {"type": "ephemeral", "ttl": "1h"}},
        "words",
    ),
    ({"type": "made_up_later", "x": 1}, "[made_up_later: not readable here]"),
]


@pytest.mark.parametrize(("block", "text"), BLOCKS)
def test_blocks_in_results_and_of_the_user(prompt_of, block, text):
    use = {"type": "tool_use", "id": "1", "name": "f", "input": {}}
    given = {"type": "tool_result", "tool_use_id": "1", "content": [block, IMAGE]}
    messages = [
        {"role": "user", "content": [block]},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [given]},
    ]
    prompt = prompt_of(MESSAGES, {"messages": messages})
    assert prompt.count(text) == 2
    assert f"{text}\n[image: not readable here]" in prompt


@pytest.mark.parametrize(
    ("blocks", "texts"),
    [
        (
            [{"type": "thinking", "thinking": "I wondered.", "signature": "whatever"}, {"type": "text", "text": "So."}],
            ["So."],
        ),
        ([{"type": "redacted_thinking", "data": "xyz"}, {"type": "text", "text": "So."}], ["So."]),
        (
            [
                {"type": "server_tool_use", "id": "1", "name": "web_search", "input": {"query": "lilies"}},
                {
                    "type": "web_search_tool_result",
                    "tool_use_id": "1",
                    "content": [
                        {"type": "web_search_result", "title": "Lily", "url": "http://l", "encrypted_content": "zzz"}
                    ],
                },
            ],
            ['[server_tool_use web_search]\n{"query": "lilies"}', "Lily\nhttp://l"],
        ),
        ([{"type": "compaction", "content": "We did much.", "encrypted_content": "zzz"}], ["We did much."]),
        (
            [
                {"type": "mcp_tool_use", "id": "1", "name": "m", "server_name": "s", "input": {"a": 1}},
                {"type": "mcp_tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "four"}]},
            ],
            ["[mcp_tool_use m]", "four"],
        ),
        ([{"type": "tool_use", "id": "1", "name": "f", "input": None}], ["<function=f>"]),
        ([], ["What now?"]),
    ],
)
def test_answers_of_other_servers_in_the_history(prompt_of, blocks, texts):
    messages = [{"role": "user", "content": "Begin."}, {"role": "assistant", "content": blocks}, ASK]
    prompt = prompt_of(MESSAGES, {"messages": messages})
    for text in texts:
        assert text in prompt
    assert "zzz" not in prompt
    assert "xyz" not in prompt


@pytest.mark.parametrize("role", ["system", "developer"])
def test_system_messages_within_a_conversation_are_the_user_s(client, prompt_of, role):
    late = {"role": role, "content": [{"type": "text", "text": "Be quick."}]}
    messages = [{"role": "user", "content": "Begin."}, late, {"role": "assistant", "content": "Hm."}, ASK]
    if role == "system":
        assert "Begin.<|im_end|>\n<|im_start|>user\nBe quick." in prompt_of(MESSAGES, {"messages": messages})
        counted = client.post(f"{MESSAGES}/count_tokens", json={"model": "lily-tiny", "messages": messages}).json()
        as_user = [{**one, "role": "user"} if one["role"] == role else one for one in messages]
        expected = client.post(f"{MESSAGES}/count_tokens", json={"model": "lily-tiny", "messages": as_user}).json()
        assert counted["input_tokens"] == expected["input_tokens"]
        passing = [messages[0], {**late, "clear_at": "next_user_message"}, *messages[2:]]
        assert "Be quick." not in prompt_of(MESSAGES, {"messages": passing})
    assert "<|im_start|>user\nBe quick." in prompt_of(CHAT, {"messages": messages})
    assert "<|im_start|>user\nBe quick." in prompt_of(RESPONSES, {"input": messages})


def test_strict_servers_refuse_the_role_by_the_words_that_clients_know(strict_client):
    body = {"model": "lily-tiny", "max_tokens": 1, "messages": [ASK, {"role": "system", "content": "x"}]}
    response = strict_client.post(MESSAGES, json=body)
    assert response.status_code == 400
    assert "role 'system' is not supported" in response.json()["error"]["message"]
    chat = strict_client.post(CHAT, json={"messages": [ASK, {"role": "system", "content": "x"}, ASK]})
    assert "later_system" not in chat.text


ITEMS = [
    (
        {"type": "custom_tool_call", "call_id": "1", "name": "patch", "input": "*** Begin"},
        "<function=patch>\n<parameter=input>\n*** Begin\n",
    ),
    ({"type": "custom_tool_call_output", "call_id": "1", "output": "done"}, "done"),
    (
        {
            "type": "local_shell_call",
            "id": "l",
            "call_id": "1",
            "status": "completed",
            "action": {"type": "exec", "command": ["ls", "-l"]},
        },
        '["ls", "-l"]',
    ),
    ({"type": "local_shell_call_output", "id": "1", "output": "total 0"}, "total 0"),
    (
        {
            "type": "shell_call_output",
            "call_id": "1",
            "output": [{"stdout": "out", "stderr": "err", "outcome": {"type": "exit", "exit_code": 0}}],
        },
        "out",
    ),
    (
        {"type": "web_search_call", "id": "w", "status": "completed", "action": {"type": "search", "query": "lilies"}},
        "lilies",
    ),
    (
        {"type": "mcp_call", "id": "m", "name": "look", "server_label": "s", "arguments": '{"a": 7}', "output": "seen"},
        "seen",
    ),
    (
        {
            "type": "code_interpreter_call",
            "id": "c",
            "code": "1 + 1",
            "container_id": "x",
            "outputs": [{"type": "logs", "logs": "2"}],
        },
        "1 + 1",
    ),
    (
        {"type": "image_generation_call", "id": "i", "result": "AAAA", "status": "completed"},
        "[image: not readable here]",
    ),
    (
        {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_image", "image_url": "x"}]},
        "[image: not readable here]",
    ),
    ({"type": "function_call_output", "call_id": "1", "output": None}, "<tool_response>\n\n</tool_response>"),
    ({"type": "function_call", "call_id": None, "name": "f", "arguments": None}, "<function=f>"),
    ({"type": "compaction", "encrypted_content": "zzz"}, ""),
    ({"type": "item_reference", "id": "nowhere"}, ""),
    ({"id": "nowhere"}, ""),
    (
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "I wondered."}], "encrypted_content": "zzz"},
        "",
    ),
    (
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "AB", "annotations": []}],
            "phase": None,
        },
        "AB",
    ),
    ({"type": "made_up_later", "content": "words"}, "words"),
]


@pytest.mark.parametrize(("item", "text"), ITEMS)
def test_items_of_responses(prompt_of, item, text):
    prompt = prompt_of(RESPONSES, {"input": [{"role": "user", "content": "Begin."}, item, ASK]})
    assert text in prompt
    assert "zzz" not in prompt
    assert "What now?" in prompt


def test_sealed_reasoning_comes_back(client, prompt_of):
    fields = {"model": "lily-tiny", "include": ["reasoning.encrypted_content"], "input": "Hello!", "temperature": 0}
    item = client.post(RESPONSES, json=fields).json()["output"][0]
    thought = item.pop("content")[0]["text"]
    assert base64.b64decode(item["encrypted_content"].partition(".")[2]).decode() == thought
    call_item = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "1", "output": "4"}
    assert thought in prompt_of(RESPONSES, {"input": [{"role": "user", "content": "Hello!"}, item, call_item, output]})


def test_an_empty_input(prompt_of):
    assert "Sing." in prompt_of(RESPONSES, {"instructions": "Sing.", "input": []})


def test_what_became_a_placeholder_is_told(client):
    use = {"type": "tool_use", "id": "1", "name": "f", "input": {}}
    given = {"type": "tool_result", "tool_use_id": "1", "content": [IMAGE]}
    messages = [ASK, {"role": "assistant", "content": [use]}, {"role": "user", "content": [given]}]
    body = {"model": "lily-tiny", "max_tokens": 1, "messages": messages}
    response = client.post(MESSAGES, json=body)
    place = "messages.2.content.0.content.0"
    assert place in response.headers["x-lily-warnings"]
    assert place in response.json()["warnings"][0]
    stream = client.post(MESSAGES, json={**body, "stream": True})
    assert place in stream.headers["x-lily-warnings"]
    assert '"warnings":["messages.2' in stream.text


@pytest.mark.parametrize(
    "arguments", ['{"value": ', "[]", '"x y"', "null", None, 3, "", "not JSON", '{"a": 1} {"b": 2}']
)
def test_arguments_that_are_no_object(client, prompt_of, arguments):
    raw = arguments if isinstance(arguments, str) and arguments not in ("", "null") else ""
    prompts = [prompt_of(CHAT, history(call(arguments), result("four"), ASK))]
    item = {"type": "function_call", "call_id": "1", "name": "f", "arguments": arguments}
    output = {"type": "function_call_output", "call_id": "1", "output": "four"}
    prompts.append(prompt_of(RESPONSES, {"input": [ASK, item, output, ASK]}))
    use = {"type": "tool_use", "id": "1", "name": "f", "input": arguments}
    given = {"type": "tool_result", "tool_use_id": "1", "content": "four"}
    messages = [ASK, {"role": "assistant", "content": [use]}, {"role": "user", "content": [given]}]
    prompts.append(prompt_of(MESSAGES, {"messages": messages}))
    for prompt in prompts:
        assert "<function=f>" in prompt
        assert raw in prompt
        assert "four" in prompt


def test_lone_surrogates(client, model):
    """JSON can spell them, UTF-8 cannot."""
    text = r'{"role": "user", "content": "a\ud800b"}'
    tool = r'{"type": "function", "function": {"name": "f", "description": "\udc00"}}'
    answer = r'{"role": "assistant", "content": "\udfff"}'
    body = f'{{"model": "lily-tiny", "max_tokens": 1, "messages": [{text}, {answer}, {text}]'
    for path in (CHAT, MESSAGES, f"{MESSAGES}/count_tokens"):
        more = f', "tools": [{tool}]}}' if path == CHAT else "}"
        response = client.post(path, content=(body + more).encode())
        assert response.status_code == 200, response.text
    response = client.post(
        RESPONSES, content=rf'{{"model": "lily-tiny", "max_output_tokens": 1, "input": [{text}]}}'.encode()
    )
    assert response.status_code == 200, response.text
    kept = client.get(f"{RESPONSES}/{response.json()['id']}/input_items")
    assert kept.status_code == 200
