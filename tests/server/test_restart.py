"""A server that is stopped or killed and started again finds in its cache's directory what it would have found."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from lily_tiny import CHECKPOINT

PYTHON_PATH = os.pathsep.join(path for path in sys.path if path)
SYSTEM = " ".join(f"Rule {number}: answer in one short sentence and be kind." for number in range(30))
QUESTIONS = ("Who was Mozart?", "What is water made of?", "Is it cold in Oslo in winter?", "Tell me a joke.")
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a place",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    },
}

Message = dict[str, Any]


class Server:
    """`lily serve` as a process of its own."""

    def __init__(self, directory: Path) -> None:
        command = ["serve", str(CHECKPOINT), "--port", "0", "--threads", "1", "--context", "4096", "--no-thinking"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "lily", *command, "--cache-dir", str(directory)],
            env={**os.environ, "PYTHONPATH": PYTHON_PATH},
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        told = []
        for line in self.process.stderr:
            told.append(line)
            if address := re.search(r"http://127\.0\.0\.1:\d+", line):
                self.client = httpx.Client(base_url=address[0], timeout=120)
                break
        else:
            raise AssertionError("".join(told))
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def ask(self, messages: list[Message], **options: object) -> tuple[Message, int]:
        """(the answer, how many tokens of the prompt came from the cache)."""
        body = {"messages": messages, "max_tokens": 24, "temperature": 0, **options}
        answer = self.client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        found = answer.json()
        return found["choices"][0]["message"], found["usage"]["prompt_tokens_details"]["cached_tokens"]

    def stop(self, number: int) -> None:
        self.process.send_signal(number)
        self.process.wait(60)
        self.client.close()


@contextlib.contextmanager
def running(directory: Path) -> Iterator[Server]:
    server = Server(directory)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.stop(signal.SIGTERM)


def chat(question: str) -> list[Message]:
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]


def converse(server: Server) -> tuple[Message, Message]:
    """Chats that share a system prompt, and one with a tool. Returns the first answer and the call."""
    answers = [server.ask(chat(question))[0] for question in QUESTIONS]
    call, _ = server.ask(chat("How is the weather in Lima?"), tools=[TOOL], tool_choice="required")
    assert call["tool_calls"]
    return answers[0], call


def cached_tokens(server: Server, answer: Message, call: Message) -> dict[str, int]:
    """What comes from the cache for each kind of prompt that may follow."""
    result = {"role": "tool", "tool_call_id": call["tool_calls"][0]["id"], "content": "Fog, 16 degrees"}
    prompts: dict[str, tuple[list[Message], dict[str, object]]] = {
        "a new chat": (chat("Name a river in Peru."), {}),
        "a repeated prompt": (chat(QUESTIONS[1]), {}),
        "the next turn": ([*chat(QUESTIONS[0]), answer, {"role": "user", "content": "And Haydn?"}], {}),
        "a tool loop": ([*chat("How is the weather in Lima?"), call, result], {"tools": [TOOL]}),
    }
    return {name: server.ask(messages, **options)[1] for name, (messages, options) in prompts.items()}


@pytest.fixture(scope="module")
def expected(tmp_path_factory) -> dict[str, int]:
    """Of a server that was not stopped."""
    with running(tmp_path_factory.mktemp("running")) as server:
        found = cached_tokens(server, *converse(server))
    assert min(found.values()) > 400
    return found


def wait_until_written(directory: Path) -> None:
    """Until the writing has come to rest: what came in the last seconds may be lost with a kill."""
    deadline, seen, since = time.monotonic() + 120, None, time.monotonic()
    while time.monotonic() < deadline and (not seen or time.monotonic() < since + 4):
        now = sorted(file.name for file in directory.iterdir())
        if now != seen:
            seen, since = now, time.monotonic()
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_restarted_server_finds_what_a_running_one_would(expected, tmp_path, number):
    with running(tmp_path) as server:
        said = converse(server)
        if number == signal.SIGKILL:
            wait_until_written(tmp_path)
        server.stop(number)
    with running(tmp_path) as server:
        assert cached_tokens(server, *said) == expected
    assert not [file for file in tmp_path.iterdir() if file.name.startswith(".") and file.stat().st_size]


def test_two_servers_share_a_directory(expected, tmp_path):
    """The second one, started before, finds what the first one wrote."""
    with running(tmp_path) as first, running(tmp_path) as second:
        said = converse(first)
        wait_until_written(tmp_path)
        assert cached_tokens(second, *said) == expected
