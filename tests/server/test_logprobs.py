"""The log-probabilities of an answer spell its content, whole and in streams, behind thinking and before calls."""

import pytest
from test_openai_api import chunks_of

CALL = "<tool_call>\n<function=throw>\n<parameter=faces>\n6\n</parameter>\n</function>\n</tool_call>"
TOOL = {"name": "throw", "parameters": {"type": "object", "properties": {"faces": {"type": "integer"}}}}
FIELDS = {
    "model": "lily-tiny",
    "messages": [{"role": "user", "content": "Go"}],
    "tools": [{"type": "function", "function": TOOL}],
    "logprobs": True,
    "top_logprobs": 2,
}


def spelled(entries):
    assert all(len(entry["top_logprobs"]) in (0, 2) for entry in entries)
    texts = "".join(entry["token"] for entry in entries)
    assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == texts
    return texts


@pytest.mark.parametrize("stop", [None, "ello", "lo w"])
@pytest.mark.parametrize(
    "output", ["thinking.\n</think>\n\nHello w\u00f6rld \U0001f600", f"x</think>\n\nHello world.\n\n{CALL}"]
)
def test_logprobs_of_a_chat_spell_its_content(client, script, output, stop):
    script(output)
    choice = client.post("/v1/chat/completions", json={**FIELDS, "stop": stop}).json()["choices"][0]
    content = output.split("</think>\n\n")[1].split("\n\n")[0]
    content = content if stop is None else content.split(stop)[0]
    assert choice["message"]["content"] == content
    assert spelled(choice["logprobs"]["content"]) == content
    script(output)
    response = client.post("/v1/chat/completions", json={**FIELDS, "stop": stop, "stream": True})
    choices = [chunk["choices"][0] for chunk in chunks_of(response) if chunk["choices"]]
    for choice in choices:
        entries = choice["logprobs"]["content"] if choice["logprobs"] else []
        assert spelled(entries) == (choice["delta"].get("content") or "")
    assert "".join(choice["delta"].get("content") or "" for choice in choices) == content


@pytest.mark.parametrize("stop", [None, "lo w", "w"])
def test_logprobs_of_a_completion_spell_its_text(client, script, stop):
    script("Hello world and so on")
    fields = {"model": "lily-tiny", "prompt": "a", "logprobs": 1, "stop": stop}
    choice = client.post("/v1/completions", json=fields).json()["choices"][0]
    assert choice["text"] == ("Hello world and so on" if stop is None else "Hello world and so on".split(stop)[0])
    assert "".join(choice["logprobs"]["tokens"]) == choice["text"]
