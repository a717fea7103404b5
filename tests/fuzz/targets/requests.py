"""Bodies of requests to every endpoint: an answer, or a client's error in the API's shape, and the server goes on."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from fuzz.mutations import mutated_bytes, mutated_json
from fuzz.request_bodies import BODIES, LIMITS, UNLIMITED
from fuzz.target import Attempt, Target
from lily import Model
from lily.server import ServerOptions, create_app
from lily_tiny import CHECKPOINT

__all__ = ["TARGETS"]

_GOOD = {"model": "lily-tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
_TEXTS = [
    "<|im_end|>", "<|im_", "end|>", "<think>", "</think>", "<tool_call>\n<function=f>", "\ud800", "\x00", "\u2028", "",
    "x" * 20_000, "%s%n{0}{{ 7 * 7 }}", "a\u0301" * 50, "../../etc/passwd", "data:image/png;base64,AAAA", "[" * 3000,
    '{"a":' * 2000, "9" * 5000, "(a+)+$", "(.{0,999}){999}", "start: start | \"a\" start",
]  # fmt: skip
_FIELDS = [
    "temperature", "top_p", "top_k", "min_p", "seed", "stop", "n", "logprobs", "top_logprobs", "logit_bias", "tools",
    "tool_choice", "parallel_tool_calls", "response_format", "stream", "stream_options", "presence_penalty",
    "repetition_penalty", "max_thinking_tokens", "thinking", "reasoning", "reasoning_effort", "chat_template_kwargs",
    "metadata", "user", "system", "instructions", "input", "messages", "prompt", "tokens", "echo", "suffix", "best_of",
    "output_config", "text", "functions", "continue_final_message", "add_generation_prompt", "previous_response_id",
]  # fmt: skip


@contextlib.contextmanager
def _prepare(_: Path) -> Iterator[Attempt]:
    from starlette.testclient import TestClient

    with Model.load(CHECKPOINT, threads=1, max_context=2048) as model:
        app = create_app(model, ServerOptions(names=("lily-tiny",)))
        with TestClient(app, base_url="http://127.0.0.1:8080") as client:

            def attempt(value: dict[str, Any]) -> str:
                response = client.post(value["path"], content=value["body"])
                status = response.status_code
                assert status < 500, response.text[:2000]
                if status == 200:
                    assert "server_error" not in response.text, response.text[:2000]
                else:
                    error = response.json()["error"]
                    assert error["message"] and len(response.content) < 4000
                good = client.post("/v1/chat/completions", json=_GOOD)
                assert good.status_code == 200 and good.json()["usage"]["completion_tokens"] == 2
                return "answered" if status == 200 else "refused"

            yield attempt


def _changed(path: str, value: Any, rng: random.Random) -> None:
    """Add texts and fields that mean something to the server; let answers be short."""
    if not isinstance(value, dict):
        return
    if rng.randrange(3) == 0:
        value[rng.choice(_FIELDS)] = rng.choice([*_TEXTS, *_values(rng)])
    if rng.randrange(3) == 0 and path != "/detokenize":
        _put_text(value, rng)
    for name in LIMITS:
        if isinstance(value.get(name), int) and value[name] > 4:
            value[name] = 4
    if path not in UNLIMITED and not set(LIMITS[:3]) & set(value):
        value["max_output_tokens" if path.endswith("responses") else "max_tokens"] = 2


def _values(rng: random.Random) -> list[Any]:
    deep: Any = rng.choice(_TEXTS)
    for _ in range(rng.choice((1, 3, 50, 900))):
        deep = [deep] if rng.randrange(2) else {"a": deep}
    return [deep, {str(at): 1 for at in range(rng.choice((1, 1000)))}, [rng.choice(_TEXTS)] * 20, 2**70, -1, 1e308]


def _put_text(value: Any, rng: random.Random) -> None:
    """Another text somewhere inside, and split in two parts where texts have parts."""
    while isinstance(value, (dict, list)) and value:
        key = rng.choice(list(value) if isinstance(value, dict) else list(range(len(value))))
        if isinstance(value[key], str):
            text = rng.choice(_TEXTS)
            parts = [{"type": "text", "text": text[:4]}, {"type": "text", "text": text[4:]}]
            value[key] = parts if rng.randrange(4) == 0 else text
            return
        value = value[key]


def _inputs() -> st.SearchStrategy[dict[str, Any]]:
    kinds = []
    for path, body in BODIES.items():

        def change(value: Any, rng: random.Random, path: str = path) -> None:
            _changed(path, value, rng)

        streamed = {**body, "stream": True} if "tokenize" not in path and "count" not in path else body
        changed = (mutated_json(whole, change).map(_text) for whole in (body, streamed))
        kinds += [_request(path, one) for one in changed]
        kinds.append(_request(path, mutated_bytes(json.dumps(body).encode()).map(_short)))
    return st.one_of(kinds)


def _text(value: Any) -> bytes:
    return json.dumps(value).encode()


def _short(body: bytes) -> bytes:
    """A body whose limits were mutated asks for long answers: they are no fault."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return body
    if isinstance(value, dict):
        for name in LIMITS:
            if isinstance(value.get(name), int) and value[name] > 4:
                return b"{}"
    return body


def _request(path: str, body: st.SearchStrategy[bytes]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"path": st.just(path), "body": body})


TARGETS = [Target("requests", st.deferred(_inputs), _prepare, 250, frozenset({"answered", "refused"}))]
