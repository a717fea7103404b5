"""Long loops of tool calls over HTTP: every call arrives once, as a call, and what is known is not computed again."""

import json

CHAT = "/v1/chat/completions"
ROUNDS = 25
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "throw_dice",
            "description": "Throws a die.",
            "parameters": {"type": "object", "properties": {"faces": {"type": "integer"}}, "required": ["faces"]},
        },
    }
]
CALL = "<tool_call>\n<function=throw_dice>\n<parameter=faces>\n{}\n</parameter>\n</function>\n</tool_call>"


def streamed(client, body):
    """(message, finish reasons, usage) of a stream."""
    message, calls, finishes, usage = {"role": "assistant", "content": ""}, {}, [], None
    text = client.post(CHAT, json={**body, "stream": True, "stream_options": {"include_usage": True}}).text
    for line in text.splitlines():
        if not line.startswith("data: {"):
            continue
        chunk = json.loads(line[6:])
        usage = chunk["usage"] or usage
        for choice in chunk["choices"]:
            finishes.append(choice["finish_reason"])
            delta = choice["delta"]
            for field in ("content", "reasoning_content"):
                message[field] = message.get(field, "") + (delta.get(field) or "")
            for piece in delta.get("tool_calls", ()):
                call = calls.setdefault(piece["index"], {"id": piece.get("id"), "type": "function", "function": {}})
                for field, value in piece["function"].items():
                    call["function"][field] = call["function"].get(field, "") + value
    return {**message, "tool_calls": list(calls.values())}, finishes, usage


def test_25_rounds(client, model, script):
    model.cache.clear()
    # White space and tags as no template writes them.
    texts = [f" hm {at}\n\n\n</think>\n\n\n" + CALL.format(f"{at + 2}.0") + "\n" * (at % 3) for at in range(ROUNDS)]
    script(*texts, "done</think>\n\nFinished.")
    messages = [{"role": "system", "content": "Use tools."}, {"role": "user", "content": "Go."}]
    before = 0
    for at in range(ROUNDS):
        message, finishes, usage = streamed(client, {"messages": messages, "tools": TOOLS})
        assert [one for one in finishes if one is not None] == ["tool_calls"]
        assert finishes[-1] == "tool_calls"
        assert message["content"] == ""
        assert "<" not in message["reasoning_content"]
        (call,) = message["tool_calls"]
        assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == (
            "throw_dice",
            {"faces": at + 2},
        )
        if at:
            assert usage["prompt_tokens_details"]["cached_tokens"] >= before
        before = usage["prompt_tokens"]
        messages += [message, {"role": "tool", "tool_call_id": call["id"], "content": f"{at}"}]
    for one in messages:
        one.pop("reasoning_content", None)  # a client that knows nothing of it still shares the beginning
    message, finishes, usage = streamed(client, {"messages": messages, "tools": TOOLS})
    assert message["content"] == "Finished."
    assert usage["prompt_tokens_details"]["cached_tokens"] > 0
    assert [one for one in finishes if one is not None] == ["stop"]
