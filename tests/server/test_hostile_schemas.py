"""Requests whose schemas and grammars are made to keep the server busy are answered or refused, without a traceback."""

import json
import logging
import time

import pytest

pytest.importorskip("llguidance")

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello"}]
SELF = {"$ref": "#/$defs/e", "$defs": {"e": {"anyOf": [{"$ref": "#/$defs/e"}] * 20}}}


def diamonds(keyword):
    definitions = {f"d{at}": {keyword: [{"$ref": f"#/$defs/d{at + 1}"}] * 2} for at in range(40)}
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, "d40": {"type": "object"}}}


def nested(levels):
    schema = {}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


def answer(schema):
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}}


def tool(schema, **fields):
    parameters = {"type": "object", "properties": {"x": schema}, "required": ["x"], "$defs": schema.get("$defs", {})}
    return {"tools": [{"type": "function", "function": {"name": "f", "parameters": parameters}}], **fields}


def form(kind, text):
    return {"response_format": {"type": kind, kind: text}}


REQUESTS = {
    "answer of alternatives of itself": (answer(SELF), 400),
    "call of alternatives of itself": (tool(SELF, tool_choice="required"), 200),
    "tool of alternatives of itself": (tool(SELF), 200),
    "answer of diamonds": (answer(diamonds("anyOf")), 200),
    "answer of diamonds of demands": (answer(diamonds("allOf")), 200),
    "call of diamonds": (tool(diamonds("oneOf"), tool_choice="required"), 200),
    "answer of many levels": (answer(nested(300)), 400),
    "call of many levels": (tool(nested(300), tool_choice="required"), 400),
    "tool of many levels": (tool(nested(300)), 400),
    "regex of counts": (form("regex", "((a{1000}){1000}){1000}"), 400),
    "grammar of itself": (form("grammar", "start: start"), 400),
    "grammar without an end": (form("grammar", "start: /a+/ start"), 200),
    "regex that leads nowhere": (form("regex", "[x-z]{60}((a{1000}){1000}){1000}"), 400),
    "types of another language": (tool({"type": "float"}, tool_choice="required"), 200),
    "a pattern with a look-around": (answer({"type": "string", "pattern": "^(?!x)"}), 200),
    "unique items": (answer({"type": "array", "uniqueItems": True}), 200),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_request_is_answered_or_refused(client, caplog, name):
    fields, status = REQUESTS[name]
    body = {"messages": HELLO, "max_tokens": 100, "chat_template_kwargs": {"enable_thinking": False}, **fields}
    with caplog.at_level(logging.INFO):
        began = time.monotonic()
        answered = client.post(CHAT, json=body)
        assert time.monotonic() - began < 60  # two seconds at most on an idle machine; what has no bound takes years
    assert answered.status_code == status, answered.text
    if status == 400:
        assert len(answered.json()["error"]["message"]) < 600
    lines = [record for record in caplog.records if record.name.startswith("lily")]
    assert len(lines) <= 2
    assert all(record.exc_info is None for record in lines)


def test_stream_that_a_grammar_leads_nowhere_ends_with_an_error(client):
    body = {
        "messages": HELLO,
        "max_tokens": 100,
        "stream": True,
        "chat_template_kwargs": {"enable_thinking": False},
        **form("regex", "[x-z]{60}((a{1000}){1000}){1000}"),
    }
    with client.stream("POST", CHAT, json=body) as stream:
        lines = [line for line in stream.iter_lines() if line.startswith("data: ")]
    if stream.status_code == 200:
        errors = [json.loads(line[6:]).get("error") for line in lines if "error" in line]
        assert "the grammar cannot continue" in errors[-1]["message"]
    else:
        assert stream.status_code == 400
    assert client.post(CHAT, json={"messages": HELLO, "max_tokens": 2}).status_code == 200
