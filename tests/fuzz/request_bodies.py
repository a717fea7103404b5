"""One valid body for each endpoint, with every field that is easily got wrong."""

from __future__ import annotations

from typing import Any

__all__ = ["BODIES", "LIMITS"]

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
CHAT = {
    "model": "lily-tiny",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "1", "content": "4"},
    ],
    "tools": [TOOL],
    "tool_choice": "auto",
    "response_format": {"type": "text"},
    "stop": ["x"],
    "logprobs": True,
    "top_logprobs": 2,
    "logit_bias": {"5": 1},
    "seed": 1,
    "temperature": 0.5,
    "stream_options": {"include_usage": True},
    "stream": True,
    "chat_template_kwargs": {"enable_thinking": False},
    "max_tokens": 1,
}
MESSAGES = {
    "model": "lily-tiny",
    "max_tokens": 1,
    "system": [{"type": "text", "text": "Be brief."}],
    "messages": [
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "x", "signature": "y"},
                {"type": "web_search_tool_result", "tool_use_id": "0", "content": [{"type": "image", "title": "x"}]},
                {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}},
            ],
        },
        {"role": "system", "content": [{"type": "tool_addition", "tool": {"type": "tool_reference", "name": "f"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "4", "is_error": True}]},
    ],
    "tools": [{"name": "f", "input_schema": {"type": "object"}}],
    "tool_choice": {"type": "auto"},
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "stop_sequences": ["x"],
}
RESPONSES = {
    "model": "lily-tiny",
    "max_output_tokens": 1,
    "instructions": "Be brief.",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "web_search_call", "id": "w", "action": {"type": "search", "query": "x"}},
        {"type": "shell_call_output", "call_id": "1", "output": [{"stdout": "x", "outcome": {"type": "exit"}}]},
        {"type": "item_reference", "id": "x"},
        {"type": "function_call_output", "call_id": "1", "output": "4"},
    ],
    "tools": [
        {"type": "function", "name": "f", "parameters": {"type": "object"}},
        {"type": "custom", "name": "g", "format": {"type": "grammar", "syntax": "lark", "definition": "x"}},
        {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "h"}]},
        {"type": "web_search"},
    ],
    "tool_choice": {"type": "function", "name": "f"},
    "text": {"format": {"type": "json_object"}},
    "reasoning": {"effort": "none"},
}
COMPLETIONS = {"model": "lily-tiny", "prompt": ["a", [1, 2]], "max_tokens": 1, "echo": True, "logprobs": 1, "n": 2}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/messages": MESSAGES,
    "/v1/messages/count_tokens": {key: value for key, value in MESSAGES.items() if key != "max_tokens"},
    "/v1/responses": RESPONSES,
    "/v1/responses/input_tokens": {key: value for key, value in RESPONSES.items() if key != "max_output_tokens"},
    "/v1/completions": COMPLETIONS,
    "/tokenize": {"prompt": "a", "parse_special": False},
    "/detokenize": {"tokens": [1, 2]},
}
UNLIMITED = ("/tokenize", "/detokenize", "/v1/messages/count_tokens", "/v1/responses/input_tokens")  # no answer
LIMITS = ("max_tokens", "max_output_tokens", "max_completion_tokens", "n")
