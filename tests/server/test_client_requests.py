"""What coding clients really send, recorded and shortened: it is answered, and its parts reach the prompt."""

import json
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "client_requests"
PATHS = {
    "claude_code": "/v1/messages",
    "codex": "/v1/responses",
    "opencode": "/v1/chat/completions",
    "qwen_code": "/v1/chat/completions",
}


@pytest.mark.parametrize("name", PATHS)
def test_the_round_with_a_tool_of_a_client(client, prompt_of, name):
    body = json.loads((FOLDER / f"{name}.json").read_text())
    prompt = prompt_of(PATHS[name], {**body, "max_tokens": 1} if name != "codex" else body)
    assert "Read the file note.txt" in prompt
    results = re.findall(r"<tool_response>(.*?)</tool_response>", prompt, re.DOTALL)
    assert "heron-4711" in results[-1]
    assert re.search(r"<function=(Read|read|read_file|exec_command)>\n<parameter=", prompt)
    assert "I read it." in prompt  # the thinking of the turn that goes on
    limit = {"max_output_tokens" if name == "codex" else "max_tokens": 3}
    stream = client.post(PATHS[name], json={**body, **limit, "stream": True})
    assert stream.status_code == 200
    assert "event: error" not in stream.text
    assert '{"error":{' not in stream.text


def test_tools_in_namespaces_are_functions_and_are_called_by_their_names(client, script):
    body = json.loads((FOLDER / "codex.json").read_text())
    names = [tool["name"] for tool in body["tools"] if tool.get("type") == "namespace"]
    assert names == ["multi_agent_v1"]
    call = "<tool_call>\n<function=close_agent>\n<parameter=target>\nx\n</parameter>\n</function>\n</tool_call>"
    for stream in (False, True):
        script(f"I close it.\n</think>\n\n{call}")
        response = client.post("/v1/responses", json={**body, "stream": stream})
        text = response.text if not stream else response.text.split("data: ")[-1]
        answer = json.loads(text)
        item = (answer["response"] if stream else answer)["output"][-1]
        assert (item["type"], item["namespace"], item["name"]) == ("function_call", "multi_agent_v1", "close_agent")
    assert "web_search" in response.headers["x-lily-warnings"]
    assert "client_metadata" in response.headers["x-lily-warnings"]
