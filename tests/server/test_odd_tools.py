"""Tools of odd names and schemas: the model calls them, and the client gets its own names back."""

import json

import pytest

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
PATHS = [CHAT, MESSAGES, RESPONSES]
HELLO = [{"role": "user", "content": "Hello!"}]
NAMES = [
    "two words",
    "a.b",
    "a/b",
    "naïve✓",
    "n" * 150,
    "n" * 400,
    "a>b",
    "<b>",
    "\n",
    '"q"',
    " edge ",
    "a\nb",
    "\ud800",
]


def request(path, tools, **fields):
    """A request for an answer without thinking; tools are pairs of name and schema."""
    body = {"model": "lily-tiny", "input" if path == RESPONSES else "messages": HELLO, **fields}
    if path == MESSAGES:
        given = [{"name": name, "input_schema": schema} for name, schema in tools]
        return {"max_tokens": 200, **body, "tools": given}
    given = [{"name": name, "parameters": schema} for name, schema in tools]
    if path == CHAT:
        return {"enable_thinking": False, **body, "tools": [{"type": "function", "function": one} for one in given]}
    return {"enable_thinking": False, **body, "tools": [{"type": "function", **one} for one in given]}


def forced(path):
    return {"type": "any"} if path == MESSAGES else "required"


def ask(client, path, body):
    response = client.post(path, content=json.dumps(body).encode())
    assert response.status_code == 200, response.text
    return response


def calls_of(path, response):
    """Pairs of name and arguments in a complete answer."""
    body = response.json()
    if path == CHAT:
        functions = [call["function"] for call in body["choices"][0]["message"].get("tool_calls", [])]
        return [(one["name"], json.loads(one["arguments"])) for one in functions]
    if path == MESSAGES:
        return [(one["name"], one["input"]) for one in body["content"] if one["type"] == "tool_use"]
    items = [one for one in body["output"] if one["type"] == "function_call"]
    return [(one["name"], json.loads(one["arguments"])) for one in items]


def streamed_calls_of(path, response):
    events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
    names, texts = [], []
    if path == CHAT:
        deltas = [event["choices"][0]["delta"] for event in events if event["choices"]]
        for piece in [piece for delta in deltas for piece in delta.get("tool_calls", [])]:
            if "id" in piece:
                names.append(piece["function"]["name"])
                texts.append("")
            texts[-1] += piece["function"]["arguments"]
    elif path == MESSAGES:
        for event in events:
            if event["type"] == "content_block_start" and event["content_block"]["type"] == "tool_use":
                names.append(event["content_block"]["name"])
                texts.append("")
            elif event["type"] == "content_block_delta" and event["delta"]["type"] == "input_json_delta":
                texts[-1] += event["delta"]["partial_json"]
    else:
        for event in events:
            if event["type"] == "response.function_call_arguments.done":
                names.append(event["name"])
                texts.append(event["arguments"])
    return [(name, json.loads(text)) for name, text in zip(names, texts, strict=True)]


NOTHING = dict.fromkeys(
    [
        *("$ref", "properties", "required", "items", "enum", "allOf", "anyOf", "additionalProperties", "pattern"),
        *("format", "minLength", "maxLength", "minimum", "maxItems", "uniqueItems", "not", "patternProperties", "type"),
    ]
)


def test_keywords_that_are_null_say_nothing(client):
    """As serializers write all that is not set."""
    properties = {"a": {**NOTHING, "type": "integer"}, "b": {**NOTHING, "enum": ["x"]}}
    schema = {**NOTHING, "type": "object", "properties": properties, "required": ["a", "b"]}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    body = {"model": "lily-tiny", "messages": HELLO, "max_tokens": 200, "temperature": 0, "enable_thinking": False}
    told = client.post(CHAT, json={**body, "response_format": form, "max_tokens": 1})
    assert told.status_code == 200, told.text
    assert "warnings" not in told.json()
    called = client.post(CHAT, json={**body, "tools": [tool], "tool_choice": "required"})
    assert "x-lily-warnings" not in called.headers
    [call] = called.json()["choices"][0]["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"])["b"] == "x"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_a_tool_of_any_name_can_be_called(client, prompt_of, path, name):
    pytest.importorskip("llguidance")
    shown = name.encode("utf-8", "replace").decode()
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    body = request(path, [(name, schema)], tool_choice=forced(path))
    [(called, arguments)] = calls_of(path, ask(client, path, body))
    assert called == shown
    assert set(arguments) == {"a"}
    assert [called for called, _ in streamed_calls_of(path, ask(client, path, {**body, "stream": True}))] == [shown]
    if path == CHAT:
        named = {"type": "function", "function": {"name": name}}
        assert calls_of(path, ask(client, path, {**body, "tool_choice": named}))[0][0] == shown


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("parameter", ["a>b", '"a"', "'", "", "a\nb", "p" * 300, "\udfff"], ids=range(7))
def test_a_parameter_of_any_name_can_be_given(client, path, parameter):
    pytest.importorskip("llguidance")
    shown = parameter.encode("utf-8", "replace").decode()
    properties = {parameter: {"type": "boolean"}, "b": {"type": "boolean"}}
    schema = {"type": "object", "properties": properties, "required": [parameter, "b"]}
    body = request(path, [("f", schema)], tool_choice=forced(path))
    [(_, arguments)] = calls_of(path, ask(client, path, body))
    assert set(arguments) == {shown, "b"}
    [(name, arguments)] = streamed_calls_of(path, ask(client, path, {**body, "stream": True}))
    assert (name, set(arguments)) == ("f", {shown, "b"})


def test_earlier_calls_have_the_names_that_the_model_knows(prompt_of):
    schema = {"type": "object", "properties": {"a>b": {"type": "integer"}, "c": {"type": "integer"}}}
    for arguments in ('{"a>b": 7, "c": 8}', {"a>b": 7, "c": 8}):
        call = {"id": "1", "type": "function", "function": {"name": "x>y", "arguments": arguments}}
        messages = [*HELLO, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "four"}]
        prompt = prompt_of(CHAT, {**request(CHAT, [("x>y", schema)]), "messages": messages})
        assert '"name": "x_y"' in prompt
        assert "<function=x_y>\n<parameter=a_b>\n7\n</parameter>\n<parameter=c>\n8\n" in prompt
        assert "x>y" not in prompt


def test_aliases_are_no_names_of_other_tools(client, prompt_of):
    pytest.importorskip("llguidance")
    schema = {
        "type": "object",
        "properties": {"a_b": {"type": "boolean"}, "a>b": {"type": "boolean"}},
        "required": ["a>b"],
    }
    tools = [("x_y", schema), ("x>y", schema), ("x<y", schema)]
    prompt = prompt_of(CHAT, request(CHAT, tools))
    for text in ('"x_y"', '"x_y.2"', '"x_y.3"', '"a_b"', '"a_b.2"'):
        assert text in prompt
    for name in ("x_y", "x>y", "x<y"):
        choice = {"type": "function", "function": {"name": name}}
        [(called, arguments)] = calls_of(CHAT, ask(client, CHAT, request(CHAT, tools, tool_choice=choice)))
        assert called == name
        assert "a>b" in arguments


@pytest.mark.parametrize("path", PATHS)
def test_of_two_tools_with_one_name_the_first_counts(client, strict_client, path):
    pytest.importorskip("llguidance")
    first, second = ({"type": "object", "properties": {one: {"type": "boolean"}}, "required": [one]} for one in "ab")
    body = request(path, [("f", first), ("f", second)], tool_choice=forced(path))
    response = ask(client, path, body)
    [(_, arguments)] = calls_of(path, response)
    assert set(arguments) == {"a"}
    assert "already" in response.headers["x-lily-warnings"]
    assert strict_client.post(path, json=body).status_code == 400


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "schema", ['{"type": "object", "properties": {"abc": {}}}', [], "", None, False, {"properties": []}]
)
def test_schemas_as_some_languages_write_them(prompt_of, path, schema):
    prompt = prompt_of(path, request(path, [("f", schema)]))
    assert ('"abc"' in prompt) == (isinstance(schema, str) and bool(schema))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, RESPONSES])
def test_a_call_that_is_not_allowed_does_not_appear(client, script, path, stream):
    tools = [("f", {"type": "object", "properties": {}}), ("g", {"type": "object", "properties": {}})]
    allowed = {"mode": "auto", "tools": [{"type": "function", "name": "g"}]}
    choice = {"type": "allowed_tools", **({"allowed_tools": allowed} if path == CHAT else allowed)}
    body = request(path, tools, tool_choice=choice, stream=stream)
    calls = {name: f"<tool_call>\n<function={name}>\n</function>\n</tool_call>" for name in "fgh"}
    read = streamed_calls_of if stream else calls_of
    for names, seen in (("f", []), ("g", ["g"]), ("fg", ["g"]), ("h", ["h"])):
        script("Well.\n\n" + "\n".join(calls[name] for name in names))
        response = ask(client, path, body)
        assert [name for name, _ in read(path, response)] == seen
        assert ("which tool_choice does not allow" in response.text) == ("f" in names)
        if path == CHAT:
            assert ("tool_calls" in response.text) == bool(seen)


@pytest.mark.parametrize("path", PATHS)
def test_a_warning_tells_what_forced_calls_are_not_held_to(client, path):
    pytest.importorskip("llguidance")
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "string", "pattern": "x", "minLength": 2},
            "b": {"anyOf": [{"type": "string"}, {"type": "integer", "maximum": 3}]},
            "c": {"type": "integer", "minimum": 1, "maximum": 2},
            "d": {"enum": ["u", "v"], "maxLength": 1},
            "e": {"$ref": "#/$defs/e"},
        },
        "required": ["c", "z"],
        "minProperties": 2,
        "$defs": {"e": {"type": ["string", "null"], "format": "date"}},
    }
    told = ask(client, path, request(path, [("f", schema)], tool_choice=forced(path))).json()["warnings"]
    words = [
        ("minProperties", ""),
        ("required", ""),
        ("pattern", "a"),
        ("minLength", "a"),
        ("maximum", "b"),
        ("format", "e"),
    ]
    for keyword, parameter in words:
        assert any(f"{keyword} of {parameter}" in one for one in told), keyword
    assert not any(" of c" in one or " of d" in one for one in told)
    free = ask(client, path, {**request(path, [("f", schema)]), "max_tokens" if path == MESSAGES else "n": 1})
    assert "x-lily-warnings" not in free.headers


@pytest.mark.parametrize("path", PATHS)
def test_strict_tools_where_nothing_forces_a_call(client, path):
    def warnings(**fields):
        body = request(path, [("now", {"type": "object", "properties": {}})], **fields)
        inner = body["tools"][0]
        inner.get("function", inner)["strict"] = True
        response = client.post(path, json=body)
        assert response.status_code == 200, response.text
        return [one for one in response.json().get("warnings", []) if "strict" in one]

    few = {"max_output_tokens" if path == RESPONSES else "max_tokens": 1}
    assert warnings(**few) == [
        "tools: strict is not enforced (now): schemas are enforced only if tool_choice forces a call or the answer has "
        "a format"
    ]
    assert warnings(**few, tool_choice={"type": "none"} if path == MESSAGES else "none") == []
    assert warnings(tool_choice=forced(path)) == []
