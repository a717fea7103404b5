"""Bodies of requests, good and bad ones, for all endpoints."""

from __future__ import annotations

import json
import random
from typing import Any

from .json_mutations import mutated_json

__all__ = ["ENDPOINTS", "broken_json", "good", "mutated"]

MESSAGE = {"role": "user", "content": "Hello, who are you?"}
TOOL = {
    "type": "function",
    "function": {"name": "get", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}},
}
CALL = {"id": "c1", "type": "function", "function": {"name": "get", "arguments": '{"a": "b"}'}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}}, "required": ["a"]}

# For each endpoint a body that uses many of its fields; answers are short.
ENDPOINTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "model": "lily-tiny",
        "messages": [
            {"role": "system", "content": "Be brief."},
            MESSAGE,
            {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "Hm."},
            {"role": "tool", "tool_call_id": "c1", "content": "done"},
            {"role": "user", "content": [{"type": "text", "text": "And now?"}]},
        ],
        "max_tokens": 6,
        "tools": [TOOL],
        "tool_choice": "auto",
        "temperature": 0.5,
        "top_p": 0.9,
        "stop": ["zzz"],
        "n": 1,
        "seed": 1,
        "logprobs": True,
        "top_logprobs": 2,
        "logit_bias": {"5": 1},
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
    },
    "/v1/responses": {
        "model": "lily-tiny",
        "instructions": "Be brief.",
        "input": [
            MESSAGE,
            {"type": "function_call", "call_id": "c1", "name": "get", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "done"},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        ],
        "max_output_tokens": 6,
        "tools": [{"type": "function", "name": "get", "parameters": SCHEMA}, {"type": "custom", "name": "free"}],
        "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}},
        "reasoning": {"effort": "low"},
        "include": ["reasoning.encrypted_content"],
        "previous_response_id": None,
    },
    "/v1/completions": {
        "model": "lily-tiny",
        "prompt": ["Hello", "there"],
        "max_tokens": 5,
        "echo": True,
        "logprobs": 2,
        "n": 1,
    },
    "/v1/messages": {
        "model": "lily-tiny",
        "system": [{"type": "text", "text": "Be brief."}],
        "messages": [
            MESSAGE,
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "get", "input": {"a": 1}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "done"}]},
        ],
        "max_tokens": 6,
        "tools": [{"name": "get", "input_schema": SCHEMA}],
        "tool_choice": {"type": "auto"},
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "stop_sequences": ["zzz"],
    },
    "/v1/messages/count_tokens": {
        "model": "lily-tiny",
        "messages": [MESSAGE],
        "tools": [{"name": "get", "input_schema": {}}],
    },
    "/v1/responses/input_tokens": {"model": "lily-tiny", "input": "Hello"},
    "/tokenize": {"prompt": "Hello <|im_end|>"},
    "/detokenize": {"tokens": [1, 2, 3]},
}


def good(path: str) -> dict[str, Any]:
    """A body that is answered with 200."""
    return dict(ENDPOINTS[path])


def mutated(path: str, rng: random.Random) -> bytes:
    """A body with hostile values in some places."""
    body = good(path)
    for name in [name for name in body if name not in ("model", "messages", "input", "prompt", "max_tokens")]:
        if rng.random() < 0.3:
            del body[name]
    if rng.random() < 0.3:
        body["stream"] = True
    return mutated_json(json.dumps(body), rng)


def broken_json(rng: random.Random) -> bytes:
    """What is no JSON, or none that is an object."""
    return rng.choice(
        (
            *(
                b"",
                b"{",
                b"}",
                b"[]",
                b"null",
                b'"a"',
                b"{'a': 1}",
                b"\xff\xfe{\0}\0",
                b"\0" * 100,
                b'{"a": 1,}',
                b"NaN",
            ),
            *(b"[" * 100_000, b'{"a":' * 50_000, b'{"messages": ' + b"9" * 100_000 + b"}", b'"' + b"\\u0000" * 1000),
            b'{"messages": [{"role": "user", "content": "\\ud800"}], "max_tokens": 3}',
        )
    )
