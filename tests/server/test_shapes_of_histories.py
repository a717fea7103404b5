"""Shapes of messages and items that no API describes and clients send: each is answered, and counted as answered."""

import pytest

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
LIMITS = {RESPONSES: "max_output_tokens", MESSAGES: "max_tokens", CHAT: "max_tokens"}
ASK = {"role": "user", "content": "What now?"}
USER = "<|im_start|>user\n"
RESULT = "<tool_response>\nfour\n</tool_response>"
CALL = {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": '{"a": 7}'}}]}


def conversation(path, *turns):
    return {"input" if path == RESPONSES else "messages": [*turns]}


def answered(client, path, body):
    """The answer, whose prompt the counting endpoint of the API counts exactly."""
    body = {"model": "lily-tiny", **body}
    response = client.post(path, json={LIMITS[path]: 1, **body})
    assert response.status_code == 200, response.text
    usage = response.json()["usage"]
    if path == MESSAGES:
        counted = client.post(f"{MESSAGES}/count_tokens", json=body).json()["input_tokens"]
        assert counted == usage["input_tokens"] + usage["cache_read_input_tokens"]
    if path == RESPONSES:
        assert client.post(f"{RESPONSES}/input_tokens", json=body).json()["input_tokens"] == usage["input_tokens"]
    return response


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
@pytest.mark.parametrize(
    ("turn", "text"),
    [
        ({"role": "user", "content": {"type": "text", "text": "AB"}}, f"{USER}AB<"),
        ({"role": "user", "content": {"text": "AB"}}, f"{USER}AB<"),
        ({"role": "user", "content": 7}, f"{USER}7<"),
        ({"role": "user", "content": {"a": [1]}}, f'{USER}{{"a": [1]}}<'),
        ({"role": "user", "content": [{"type": "text", "text": 7}]}, f"{USER}7<"),
        ({"role": "user", "content": [{"type": 7, "text": "AB"}]}, f"{USER}AB<"),
        ({"role": "user", "content": [None, "AB"]}, f"{USER}AB<"),
        ({"role": "assistant", "content": {"type": "text", "text": "AB"}}, "assistant\nAB<"),
        ({"role": "model", "content": "AB"}, "assistant\nAB<"),
        ({"role": "Assistant", "content": "AB"}, "assistant\nAB<"),
        ({"role": "human", "content": "AB"}, f"{USER}AB<"),
        ({"role": "narrator", "content": "AB"}, f"{USER}AB<"),
        ({"role": None, "content": "AB"}, f"{USER}AB<"),
        ({"content": "AB"}, f"{USER}AB<"),
        ({"role": "user", "parts": [{"text": "A"}, {"type": "text", "text": "B "}]}, f"{USER}A"),
        ({"role": "model", "parts": [{"text": "AB"}]}, "assistant\nAB<"),
        ({"role": "user", "text": "AB"}, f"{USER}AB<"),
        ({"role": "user", "content": "AB ", "images": ["AAAA"]}, f"{USER}AB [image: not readable here]"),
        ("AB", f"{USER}AB<"),
        (None, ""),
        (7, ""),
        ([], ""),
        ({}, ""),
        ({"role": "tool", "tool_call_id": "1", "content": "four"}, RESULT),
        ({"role": "function", "name": "f", "content": "four"}, RESULT),
        ({"role": "ipython", "content": "four"}, RESULT),
        ({"role": "tool", "content": {"type": "text", "text": "four"}}, RESULT),
        ({"role": "tool", "content": {"type": "success", "value": 4}}, '{"type": "success", "value": 4}'),
        ({"role": "developer", "content": "AB"}, f"{USER}AB<"),
        ({"role": "system", "content": {"type": "text", "text": "AB"}}, f"{USER}AB<"),
    ],
)
def test_no_shape_of_a_message_is_refused(client, prompt_of, path, turn, text):
    body = conversation(path, {"role": "user", "content": "Begin."}, turn, ASK)
    assert text in prompt_of(path, body)
    answered(client, path, body)


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@pytest.mark.parametrize("message", ["What now?", ASK, {"content": "What now?"}])
def test_one_message_in_place_of_the_list(client, strict_client, prompt_of, path, message):
    assert prompt_of(path, {"messages": message}) == prompt_of(path, {"messages": [ASK]})
    answered(client, path, {"messages": message})
    assert strict_client.post(path, json={"max_tokens": 1, "messages": message}).status_code == 400


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
def test_calls_in_the_form_of_messages(client, prompt_of, path):
    use = {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 7}}
    result = {"type": "tool_result", "tool_use_id": "1", "content": "four", "is_error": True}
    thought = {"type": "thinking", "thinking": "I wondered.", "signature": "x"}
    turns = [{"role": "assistant", "content": [thought, use]}, {"role": "user", "content": [result]}]
    body = conversation(path, ASK, *turns)
    prompt = prompt_of(path, body)
    assert "<think>\nI wondered.\n</think>\n\n<tool_call>\n<function=f>\n<parameter=a>\n7\n" in prompt
    assert "<tool_response>\nError: four\n</tool_response>" in prompt
    answered(client, path, body)


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
def test_one_call_in_place_of_the_list(prompt_of, path):
    body = conversation(path, ASK, {**CALL, "tool_calls": CALL["tool_calls"][0]}, {"role": "tool", "content": "four"})
    assert "<function=f>\n<parameter=a>\n7\n" in prompt_of(path, body)


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
def test_calls_in_the_form_of_chat_completions(client, prompt_of, path):
    result = {"role": "tool", "tool_call_id": "1", "content": "four"}
    body = conversation(path, ASK, {**CALL, "reasoning_content": "I wondered."}, result)
    prompt = prompt_of(path, body)
    assert "<think>\nI wondered.\n</think>\n\n<tool_call>\n<function=f>\n<parameter=a>\n7\n" in prompt
    assert RESULT in prompt
    answered(client, path, body)


@pytest.mark.parametrize(
    ("item", "text"),
    [
        ({"type": "input_text", "text": "AB"}, f"{USER}AB<"),
        ({"type": "output_text", "text": "AB"}, "assistant\nAB<"),
        ({"text": "AB"}, f"{USER}AB<"),
        ({"content": [{"type": "input_text", "text": "AB"}]}, f"{USER}AB<"),
        ({"call_id": "1", "output": "four"}, RESULT),
        ({"call_id": "1", "name": "f", "arguments": '{"a": 7}'}, "<function=f>\n<parameter=a>\n7\n"),
        ({"type": "made_up", "role": "user", "content": "AB"}, f"{USER}AB<"),
        ({"type": 7, "role": "user", "content": "AB"}, f"{USER}AB<"),
        ({"type": 7}, ""),
        ({"type": "message", "content": "AB"}, f"{USER}AB<"),
        ({"type": "message", "role": "tool", "tool_call_id": "1", "content": "four"}, RESULT),
        (
            {"type": "code_interpreter_call", "code": "1+3", "outputs": [{"type": "logs", "logs": "four"}]},
            f"1+3\n</parameter>\n</function>\n</tool_call><|im_end|>\n{USER}{RESULT}",
        ),
        ({"type": "shell_call_output", "output": [{"stdout": "four", "stderr": ""}]}, RESULT),
        ({"type": "made_up_output", "output": [{"type": "made_up", "text": "four"}]}, RESULT),
    ],
)
def test_items_without_a_type_and_parts_as_items(client, prompt_of, item, text):
    body = {"input": [{"role": "user", "content": "Begin."}, item, ASK]}
    assert text in prompt_of(RESPONSES, body)
    answered(client, RESPONSES, body)
    kept = client.post(RESPONSES, json={"model": "lily-tiny", "max_output_tokens": 1, **body}).json()
    assert text in prompt_of(RESPONSES, {"input": "And?", "previous_response_id": kept["id"]})


def test_one_item_in_place_of_the_list(prompt_of):
    assert f"{USER}What now?" in prompt_of(RESPONSES, {"input": ASK})
    assert f"{USER}AB<" in prompt_of(RESPONSES, {"input": ["AB"]})
    assert "Sing.\n\nLoud." in prompt_of(RESPONSES, {"input": "x", "instructions": ["Sing.", {"content": "Loud."}]})


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@pytest.mark.parametrize("turn", ["AB", None, {"role": "narrator", "content": "AB"}])
def test_strict_servers_refuse_what_no_api_has(strict_client, path, turn):
    body = {"model": "lily-tiny", "max_tokens": 1, "messages": [ASK, turn]}
    response = strict_client.post(path, json=body)
    assert response.status_code == 400
    assert "messages" in response.json()["error"]["message"]


@pytest.mark.parametrize("item", ["AB", None, {"text": "AB"}, {"type": 7}, {"type": "input_text", "text": "x"}])
def test_strict_servers_refuse_items_that_are_none(strict_client, item):
    response = strict_client.post(RESPONSES, json={"model": "lily-tiny", "input": [ASK, item]})
    assert response.status_code == 400
    assert "input[1]" in response.json()["error"]["message"]


def test_an_item_of_an_unknown_type_does_not_begin_the_answer(client, prompt_of):
    unknown = {"type": "made_up_later", "content": "AB"}
    for items in ([ASK, unknown], [ASK, unknown, {"type": "compaction_trigger"}]):
        assert prompt_of(RESPONSES, {"input": items}).endswith(f"{USER}AB<|im_end|>\n<|im_start|>assistant\n<think>\n")
    said = {"role": "assistant", "content": "AB"}
    assert prompt_of(RESPONSES, {"input": [ASK, said]}).endswith("</think>\n\nAB")


def test_messages_of_one_answer_are_parted(prompt_of):
    said = [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": one}]} for one in "AB"]
    assert "assistant\nA\n\nB<" in prompt_of(RESPONSES, {"input": [ASK, *said, ASK]})
    thoughts = [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": one} for one in pair]}
        for pair in ("AB", "C")
    ]
    call = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "1", "output": "four"}
    assert "<think>\nA\n\nB\n\nC\n</think>" in prompt_of(RESPONSES, {"input": [ASK, *thoughts, call, result]})


@pytest.mark.parametrize(
    ("path", "text"),
    [(CHAT, "ABC D"), (RESPONSES, "ABC D"), (MESSAGES, "A\nB\nC D")],
    ids=["chat", "responses", "messages"],
)
def test_parts_of_one_message(prompt_of, path, text):
    """As the chat template joins them, but for the blocks of the Messages API, which stand for themselves."""
    parts = [{"type": "text", "text": one} for one in ("A", "B", "C ", "D")]
    if path == RESPONSES:
        parts = [{**part, "type": "input_text"} for part in parts]
    assert f"{USER}{text}<" in prompt_of(path, conversation(path, {"role": "user", "content": parts}))
    answer = {"role": "assistant", "content": [{"type": "text", "text": one} for one in "AB"]}
    assert "assistant\nAB<" in prompt_of(path, conversation(path, ASK, answer, ASK))


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
@pytest.mark.parametrize("role", ["system", "developer"])
def test_a_warning_tells_of_later_system_messages(client, path, role):
    late, early = {"role": role, "content": "Be quick."}, {"role": role, "content": "Be kind."}
    told = answered(client, path, conversation(path, ASK, late, late, ASK))
    assert "becomes a user message" in told.headers["x-lily-warnings"]
    assert len(told.json()["warnings"]) == 1
    assert "x-lily-warnings" not in answered(client, path, conversation(path, early, early, ASK)).headers


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
@pytest.mark.parametrize("content", ["", " \n", None, [], [{"type": "text", "text": "\t"}]])
def test_white_space_does_not_begin_an_answer(client, prompt_of, path, content):
    body = conversation(path, ASK, {"role": "assistant", "content": content})
    assert prompt_of(path, body) == prompt_of(path, conversation(path, ASK))
    answered(client, path, body)


@pytest.mark.parametrize(
    ("path", "thought"),
    [
        (CHAT, {"role": "assistant", "content": None, "reasoning_content": "I wondered."}),
        (
            MESSAGES,
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "I wondered.", "signature": ""}]},
        ),
        (
            RESPONSES,
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "I wondered."}]},
        ),
    ],
)
def test_an_answer_that_was_cut_in_its_thinking(client, prompt_of, path, thought):
    """The template would leave an empty turn of it."""
    cut = conversation(path, ASK, thought, ASK)
    assert prompt_of(path, cut) == prompt_of(path, conversation(path, ASK, ASK))
    assert "without text is left out" in answered(client, path, cut).headers["x-lily-warnings"]
    if path != MESSAGES:
        kept = prompt_of(path, {**cut, "chat_template_kwargs": {"preserve_thinking": True}})
        assert "<think>\nI wondered." in kept  # and the ids that were generated, where it was


def test_a_response_that_was_cut_in_its_thinking_is_gone_on_from(client, prompt_of):
    cut = client.post(RESPONSES, json={"model": "lily-tiny", "input": "Hello!", "max_output_tokens": 2}).json()
    assert [item["type"] for item in cut["output"]] == ["reasoning"]
    prompt = prompt_of(RESPONSES, {"input": "And now?", "previous_response_id": cut["id"]})
    assert f"{USER}Hello!<|im_end|>\n{USER}And now?<|im_end|>\n" in prompt


def test_a_user_s_last_message_is_answered_and_not_gone_on_with(client, strict_client, prompt_of):
    body = {"messages": [ASK], "continue_final_message": True, "add_generation_prompt": False}
    assert prompt_of(CHAT, body) == prompt_of(CHAT, {"messages": [ASK]})
    assert "continue_final_message is ignored" in answered(client, CHAT, body).headers["x-lily-warnings"]
    assert strict_client.post(CHAT, json=body).status_code == 400


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
def test_stream_options_without_a_stream(client, strict_client, path):
    body = {**conversation(path, ASK), "stream_options": {"include_usage": True}}
    assert "stream_options is ignored" in answered(client, path, body).headers["x-lily-warnings"]
    assert strict_client.post(path, json=body).status_code == 400


def test_an_empty_id_of_a_previous_response_is_none(client):
    body = {"input": "Hello!", "previous_response_id": ""}
    first = answered(client, RESPONSES, body).json()
    assert "x-lily-warnings" not in client.post(RESPONSES, json={"max_output_tokens": 1, **body}).headers
    assert answered(client, RESPONSES, {"input": "And?", "previous_response_id": first["id"]})


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
def test_an_image_beside_the_text_is_refused_where_one_in_it_is(client, path):
    shown = {"role": "user", "content": "See", "images": ["AAAA"]}
    response = client.post(path, json={LIMITS[path]: 1, **conversation(path, ASK, shown)})
    assert response.status_code == 400
    assert "this model reads text only" in response.json()["error"]["message"]


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
@pytest.mark.parametrize("turn", [None, {"role": "assistant", "content": ""}])
def test_a_conversation_without_anything_is_answered(client, prompt_of, path, turn):
    assert prompt_of(path, conversation(path, turn)).startswith(f"{USER}<|im_end|>\n<|im_start|>assistant")
    answered(client, path, conversation(path, turn))
