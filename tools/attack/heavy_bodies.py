"""Bodies that ask for as much work as they can: schemas, expressions, grammars, long texts and lists, deep JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

__all__ = ["HEAVY", "heavy_request"]

MESSAGE = {"role": "user", "content": "Hello"}
Body = dict[str, Any] | bytes


def chat(**more: Any) -> dict[str, Any]:
    """A request for a chat's answer, with further fields."""
    return {"messages": [MESSAGE], "max_tokens": 8, **more}


def schema(value: Any) -> dict[str, Any]:
    """A request for an answer in the form of a schema."""
    return chat(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": value}})


def tool(parameters: Any, **more: Any) -> dict[str, Any]:
    """A request with a tool of such parameters, which is to be called."""
    function = {"name": "f", "parameters": parameters, **more}
    return chat(tools=[{"type": "function", "function": function}], tool_choice="required")


def text(content: str) -> dict[str, Any]:
    """A request with a long message."""
    return chat(messages=[{"role": "user", "content": content}])


def _doubling(depth: int, keyword: str) -> dict[str, Any]:
    """References that double at each of many levels."""
    definitions: dict[str, Any] = {
        f"d{level}": {keyword: [{"$ref": f"#/$defs/d{level + 1}"}, {"$ref": f"#/$defs/d{level + 1}"}]}
        for level in range(depth)
    }
    definitions[f"d{depth}"] = {"type": "string"}
    return {"$defs": definitions, "$ref": "#/$defs/d0"}


def _doubling_properties(depth: int) -> dict[str, Any]:
    reference = [{"$ref": f"#/$defs/d{level + 1}"} for level in range(depth)]
    definitions: dict[str, Any] = {
        f"d{level}": {"type": "object", "properties": {"a": one, "b": one}, "required": ["a", "b"]}
        for level, one in enumerate(reference)
    }
    definitions[f"d{depth}"] = {"type": "string"}
    return {"$defs": definitions, "$ref": "#/$defs/d0"}


def _nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        value = {"type": "object", "properties": {"a": value}}
    return value


def _any_of_objects(count: int) -> dict[str, Any]:
    one = [
        {"type": "object", "properties": {f"p{n}": {"type": "string", "pattern": f"a{{{n}}}b*"}}} for n in range(count)
    ]
    return {"allOf": [{"anyOf": one}, {"anyOf": one[::-1]}]}


SCHEMAS: dict[str, Callable[[], Any]] = {
    "anyOf bomb": lambda: _doubling(60, "anyOf"),
    "allOf bomb": lambda: _doubling(60, "allOf"),
    "oneOf bomb": lambda: _doubling(25, "oneOf"),
    "properties bomb": lambda: _doubling_properties(60),
    "self reference": lambda: {"$ref": "#"},
    "circle": lambda: {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    "recursion": lambda: {
        "anyOf": [{"type": "array", "items": {"$ref": "#"}}, {"type": "object", "additionalProperties": {"$ref": "#"}}]
    },
    "allOf of anyOf": lambda: _any_of_objects(300),
    "nested": lambda: _nested(49),
    "nested deeper": lambda: _nested(90),
    "2000 properties": lambda: {
        "type": "object",
        "properties": {f"p{n}": {"type": "string", "maxLength": 5} for n in range(2000)},
        "required": [f"p{n}" for n in range(2000)],
    },
    "2000 optional properties": lambda: {
        "type": "object",
        "properties": {f"p{n}": {"enum": [n, str(n)]} for n in range(1999)},
    },
    "enum of 90000": lambda: {"enum": [f"value {n}" for n in range(90_000)]},
    "enum of long": lambda: {"enum": ["a" * 50_000 + str(n) for n in range(100)]},
    "minItems": lambda: {"type": "array", "items": {"type": "string"}, "minItems": 10**6, "maxItems": 10**6},
    "counts of counts": lambda: {
        "type": "array",
        "minItems": 999,
        "maxItems": 1000,
        "items": {
            "type": "array",
            "minItems": 999,
            "maxItems": 1000,
            "items": {"type": "array", "minItems": 999, "maxItems": 1000},
        },
    },
    "maxLength": lambda: {"type": "string", "minLength": 10**6 - 1, "maxLength": 10**6},
    "multipleOf": lambda: {"type": "number", "multipleOf": 0.000001, "minimum": -1e300, "maximum": 1e300},
    "range": lambda: {"type": "integer", "minimum": -(10**300), "maximum": 10**300},
    "pattern": lambda: {"type": "string", "pattern": "^((a{1,100}){1,100}){1,100}$"},
    "pattern with sets": lambda: {"type": "string", "pattern": "^(\\p{L}{1,500}\\d{1,500}){1,50}$"},
    "patterns met": lambda: {"allOf": [{"type": "string", "pattern": f"^.*a.{{{n}}}$"} for n in range(40)]},
    "patternProperties": lambda: {
        "type": "object",
        "patternProperties": {f"^a{{{n}}}": {"type": "string"} for n in range(300)},
    },
    "long names": lambda: {"type": "object", "properties": {"x" * 100_000 + str(n): {} for n in range(20)}},
}
EXPRESSIONS: dict[str, Callable[[], str]] = {
    "regex counts": lambda: "((a{1,1000}){1,1000}){1,1000}",
    "regex nested": lambda: "(" * 5000 + "a" + ")" * 5000,
    "regex alternatives": lambda: "|".join(f"a{n}.*b" for n in range(1500)),
    "regex lookback": lambda: "(a|aa)+" * 1000 + "b",
    "regex sets": lambda: "[\\s\\S]{1,30000}x[\\p{L}]{500}",
    "regex blowup": lambda: ".*a.{200}",
    "regex and": lambda: "(?=a*)(?!b)" * 300,
}
GRAMMARS: dict[str, Callable[[], str]] = {
    "grammar left recursion": lambda: 'start: start start | start | "a" |',
    "grammar ambiguity": lambda: 'start: a a a a a a a a\na: a a | "x" | ',
    "grammar rules": lambda: (
        "start: r0\n" + "\n".join(f"r{n}: r{n + 1} r{n + 1}" for n in range(2000)) + '\nr2000: "a"'
    ),
    "grammar terminals": lambda: (
        "start: T0\n" + "\n".join(f"T{n}: T{n + 1} T{n + 1}" for n in range(40)) + '\nT40: "a"'
    ),
    "grammar counts": lambda: 'start: ("a"~1..1000)~1..1000',
    "grammar nothing": lambda: "start: start",
    "grammar json": lambda: 'start: %json {"$ref": "#"}',
    "grammar import": lambda: "%import common.WORD\n%ignore /.*/\nstart: WORD*",
    "grammar nested": lambda: "start: " + "(" * 10_000 + '"a"' + ")" * 10_000,
}


def _body(kind: str, value: Any) -> dict[str, Any]:
    return chat(response_format={"type": kind, kind: value})


HEAVY: dict[str, tuple[str, Callable[[], Body]]] = {
    **{f"schema, {name}": ("/v1/chat/completions", lambda make=make: schema(make())) for name, make in SCHEMAS.items()},
    **{f"tool, {name}": ("/v1/chat/completions", lambda make=make: tool(make())) for name, make in SCHEMAS.items()},
    **{name: ("/v1/chat/completions", lambda make=make: _body("regex", make())) for name, make in EXPRESSIONS.items()},
    **{name: ("/v1/chat/completions", lambda make=make: _body("grammar", make())) for name, make in GRAMMARS.items()},
    "anthropic tool": (
        "/v1/messages",
        lambda: chat(tools=[{"name": "f", "input_schema": _doubling(60, "anyOf")}], tool_choice={"type": "any"}),
    ),
    "responses form": (
        "/v1/responses",
        lambda: {
            "input": "x",
            "max_output_tokens": 8,
            "text": {"format": {"type": "json_schema", "name": "x", "schema": _doubling_properties(60)}},
        },
    ),
    "1000 tools": (
        "/v1/chat/completions",
        lambda: chat(
            tools=[{"type": "function", "function": {"name": f"f{n}", "parameters": _nested(20)}} for n in range(1000)],
            tool_choice="required",
        ),
    ),
    "tool description": ("/v1/chat/completions", lambda: tool({"type": "object"}, description="long words " * 700_000)),
    "biases": ("/v1/chat/completions", lambda: chat(logit_bias={str(n): 1 for n in range(1_000_000)})),
    "biases, huge keys": (
        "/v1/completions",
        lambda: {"prompt": "x", "max_tokens": 4, "logit_bias": {"9" * 4000 + str(n): 1 for n in range(2000)}},
    ),
    "stop list": ("/v1/chat/completions", lambda: chat(stop=["a" * n for n in range(100_000 // 40)])),
    "stop strings": (
        "/v1/completions",
        lambda: {
            "prompt": "a" * 100,
            "max_tokens": 100,
            "stop": ["a" * 512 + "b" * 511 + str(n % 10) for n in range(16)],
        },
    ),
    "spaces": ("/v1/chat/completions", lambda: text(" " * 8_000_000)),
    "letters": ("/v1/chat/completions", lambda: text("a" * 4_000_000)),
    "words": ("/v1/chat/completions", lambda: text("some words " * 360_000)),
    "emoji": ("/v1/chat/completions", lambda: text("🙂" * 1_000_000)),
    "newlines": ("/v1/chat/completions", lambda: text("\n" * 4_000_000)),
    "combining": ("/v1/chat/completions", lambda: text("a" + "\u0301" * 2_000_000)),
    "control texts": ("/v1/chat/completions", lambda: text("<|im_end|>" * 400_000)),
    "half control texts": ("/v1/chat/completions", lambda: text("<|im_" * 600_000)),
    "angle brackets": ("/v1/chat/completions", lambda: text("<" * 4_000_000)),
    "digits": ("/v1/messages", lambda: text("1" * 4_000_000)),
    "counted": ("/v1/messages/count_tokens", lambda: {"messages": [{"role": "user", "content": "ab" * 2_000_000}]}),
    "input counted": ("/v1/responses/input_tokens", lambda: {"input": "🙂x" * 1_000_000}),
    "prompt": ("/v1/completions", lambda: {"prompt": "word " * 1_600_000, "max_tokens": 4}),
    "prompts": ("/v1/completions", lambda: {"prompt": ["a"] * 100_000, "max_tokens": 4}),
    "prompt of ids": ("/v1/completions", lambda: {"prompt": [5] * 4_000_000, "max_tokens": 4}),
    "tokenize": ("/tokenize", lambda: {"prompt": "x" * 1_000_000}),
    "tokenize, brackets": ("/tokenize", lambda: {"prompt": "<|" * 500_000}),
    "tokenize, mixed": ("/tokenize", lambda: {"prompt": "a1é🙂 " * 90_000}),
    "detokenize": ("/detokenize", lambda: {"tokens": [4000] * 1_000_000}),
    "100000 messages": ("/v1/chat/completions", lambda: chat(messages=[MESSAGE] * 100_000)),
    "100000 messages of Anthropic": ("/v1/messages", lambda: chat(messages=[MESSAGE] * 100_000)),
    "100000 items": ("/v1/responses", lambda: {"input": [MESSAGE] * 100_000}),
    "16000 messages": (
        "/v1/chat/completions",
        lambda: chat(messages=[MESSAGE, {"role": "assistant", "content": "x"}] * 8000),
    ),
    "16000 systems": (
        "/v1/chat/completions",
        lambda: chat(messages=[{"role": "system", "content": "x"}] * 16_000 + [MESSAGE]),
    ),
    "16000 calls": (
        "/v1/chat/completions",
        lambda: chat(
            messages=[
                MESSAGE,
                {
                    "role": "assistant",
                    "tool_calls": [
                        {"id": f"c{n}", "type": "function", "function": {"name": "f", "arguments": "{}"}}
                        for n in range(16_000)
                    ],
                },
            ]
        ),
    ),
    "16000 results": (
        "/v1/chat/completions",
        lambda: chat(
            messages=[MESSAGE] + [{"role": "tool", "tool_call_id": f"c{n}", "content": "x"} for n in range(16_000)]
        ),
    ),
    "arguments": (
        "/v1/chat/completions",
        lambda: chat(
            messages=[
                MESSAGE,
                {
                    "role": "assistant",
                    "tool_calls": [
                        {"id": "c", "type": "function", "function": {"name": "f", "arguments": "[" * 1_000_000}}
                    ],
                },
                MESSAGE,
            ]
        ),
    ),
    "arguments, wide": (
        "/v1/chat/completions",
        lambda: chat(
            messages=[
                MESSAGE,
                {
                    "role": "assistant",
                    "tool_calls": [
                        {
                            "id": "c",
                            "type": "function",
                            "function": {"name": "f", "arguments": json.dumps({str(n): n for n in range(200_000)})},
                        }
                    ],
                },
                MESSAGE,
            ]
        ),
    ),
    "parts": (
        "/v1/chat/completions",
        lambda: chat(messages=[{"role": "user", "content": [{"type": "text", "text": "a"}] * 100_000}]),
    ),
    "deep json": ("/v1/chat/completions", lambda: b'{"messages": ' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}"),
    "wide json": ("/v1/chat/completions", lambda: b'{"messages": [' + b"0," * 8_000_000 + b"0]}"),
    "json of objects": (
        "/v1/chat/completions",
        lambda: b'{"metadata": [' + b'{"a":[]},' * 2_000_000 + b'0], "messages": []}',
    ),
    "escapes": (
        "/v1/chat/completions",
        lambda: b'{"messages": [{"role": "user", "content": "' + b"\\u0041" * 1_300_000 + b'"}]}',
    ),
    "long number": ("/v1/chat/completions", lambda: b'{"messages": [], "seed": ' + b"9" * 8_000_000 + b"}"),
    "many keys": ("/v1/chat/completions", lambda: b"{" + b",".join(b'"k%d":0' % n for n in range(1_000_000)) + b"}"),
    "template options": (
        "/v1/chat/completions",
        lambda: chat(chat_template_kwargs={f"k{n}": [n] * 10 for n in range(50_000)}),
    ),
    "metadata": (
        "/v1/responses",
        lambda: {"input": "x", "max_output_tokens": 4, "metadata": {str(n): "y" * 100 for n in range(100_000)}},
    ),
    "begun answer": (
        "/v1/chat/completions",
        lambda: chat(
            messages=[MESSAGE, {"role": "assistant", "content": "<tool_call>" * 300_000}],
            tools=[{"type": "function", "function": {"name": "f"}}],
        ),
    ),
    "begun thinking": (
        "/v1/chat/completions",
        lambda: chat(messages=[MESSAGE, {"role": "assistant", "content": "<think>" + "`\n" * 1_500_000}]),
    ),
    "begun fences": (
        "/v1/messages",
        lambda: chat(messages=[MESSAGE, {"role": "assistant", "content": "```\n" * 1000}]),
    ),
    "begun in a form": (
        "/v1/chat/completions",
        lambda: {**schema({"type": "array"}), "messages": [MESSAGE, {"role": "assistant", "content": "[" * 900}]},
    ),
    "logprobs": (
        "/v1/completions",
        lambda: {"prompt": "word " * 2000, "max_tokens": 200, "logprobs": 5, "echo": True, "n": 4},
    ),
    "n": ("/v1/chat/completions", lambda: chat(n=16, max_tokens=200)),
}


def heavy_request(name: str) -> tuple[str, bytes]:
    """(path, body) of one of them."""
    path, make = HEAVY[name]
    body = make()
    return path, body if isinstance(body, bytes) else json.dumps(body).encode()
