"""A grid of conversations that exercises every branch of the family's chat templates."""

from typing import Any

TOOL = {
    "type": "function",
    "function": {
        "name": "set_light",
        "description": "Switch a <light> & 'dim' it \u2014 světlo",
        "parameters": {
            "type": "object",
            "properties": {"on": {"type": "boolean"}, "room": {"type": "string"}},
            "required": ["room", "on"],
        },
    },
}
ARGUMENTS = {"on": True, "level": 1.5, "note": "two\nlines", "rooms": [1, {"k": "v", "a": "č"}], "none": None}


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **fields}


def system(text: Any) -> dict[str, Any]:
    return {"role": "system", "content": text}


def call(arguments: Any, name: str = "set_light") -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}


def result(text: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "c1", "content": text}


CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one question": [user("Hi")],
    "trimmed": [user("  \n Hi there \n")],
    "parts": [user([{"type": "text", "text": "Hi "}, {"type": "text", "text": "<b>čau</b>"}])],
    "system": [system(" Be brief. "), user("Hi")],
    "empty system": [system(""), user("Hi")],
    "two turns": [user("A"), assistant("B", reasoning_content="r1"), user("C")],
    "thinking inside content": [user("A"), assistant("<think>\nr1\n</think>\n\nB"), user("C")],
    "last turn keeps thinking": [user("A"), assistant("B", reasoning_content=" r1\n")],
    "call": [user("A"), assistant("", tool_calls=[call(ARGUMENTS)])],
    "call after text": [user("A"), assistant("I will.", tool_calls=[call({}), call({"on": False})])],
    "call and result": [user("A"), assistant(None, tool_calls=[call(ARGUMENTS)]), result(" done\n")],
    "two results": [
        user("A"),
        assistant("", reasoning_content="r1", tool_calls=[call({"on": True}), call({"on": False})]),
        result("one"),
        result([{"type": "text", "text": "two"}]),
        assistant("Both done.", reasoning_content="r2"),
        user("Thanks"),
    ],
    "result as a user message": [user("A"), assistant("B"), user("<tool_response>\nx\n</tool_response>")],
}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"enable_thinking": False},
    {"enable_thinking": True, "preserve_thinking": True},
    {"tools": [TOOL]},
    {"tools": [TOOL, {"name": "plain", "x": [None, 1e-7, "☃"]}], "enable_thinking": False},
    {"add_generation_prompt": False},
]
