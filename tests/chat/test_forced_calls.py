"""Grammars of forced calls: they take what templates write of any schema, and leave out what they cannot say."""

import json

import pytest

from lily.chat.argument_values import ToolSchemas
from lily.chat.constraints import GrammarCompiler
from lily.chat.grammars import answer_grammar, call_grammar, dropped_keywords, either_grammar
from lily.errors import InvalidArgumentError

pytest.importorskip("llguidance")


@pytest.fixture(scope="module")
def compiler(model):
    return GrammarCompiler(model.tokenizer, model.stop_tokens)


@pytest.fixture(scope="module")
def tags(tokenizer):
    return {"open_tag": tokenizer.token_id("<tool_call>"), "close_tag": tokenizer.token_id("</tool_call>")}


def tools_with(schema, definitions=None):
    parameters = {"type": "object", "properties": {"x": schema}, "required": ["x"], "$defs": definitions or {}}
    return ToolSchemas([{"name": "f", "parameters": parameters}])


def accepts(compiler, tokenizer, grammar, text):
    constraint = compiler.start(grammar)
    for token in [*tokenizer.encode(text), tokenizer.token_id("<|im_end|>")]:
        mask = constraint.mask()
        if not mask[token // 32] >> (token % 32) & 1:
            return False
        constraint.accept(token)
    return True


def call_of(text):
    return f"<tool_call>\n<function=f>\n<parameter=x>\n{text}\n</parameter>\n</function>\n</tool_call>"


def templates_forms(value):
    """How the templates of this family write a value: as JSON, or scalars in Python's form."""
    if isinstance(value, str):
        return [value]
    as_json = json.dumps(value, ensure_ascii=False)
    return [as_json] if isinstance(value, (dict, list)) else [as_json, str(value)]


BOOLEAN, NULL, INTEGER, NUMBER = ({"type": kind} for kind in ("boolean", "null", "integer", "number"))
STRING, OBJECT = {"type": "string"}, {"type": "object"}
VALUES = [
    (BOOLEAN, True),
    (BOOLEAN, False),
    ({"type": ["boolean", "null"]}, None),
    ({"type": "boolean", "nullable": True}, None),
    ({"anyOf": [BOOLEAN, NULL]}, False),
    ({"anyOf": [BOOLEAN, NULL]}, None),
    ({"anyOf": [INTEGER, NULL]}, None),
    ({"type": ["string", "null"]}, None),
    ({"type": ["string", "null"]}, "text"),
    ({"$ref": "#/$defs/flag"}, True),
    ({"$ref": "#/$defs/flag", "nullable": True}, None),
    ({"enum": [True, None, "a", 3, 0.5]}, True),
    ({"enum": [True, None, "a", 3, 0.5]}, None),
    ({"enum": [True, None, "a", 3, 0.5]}, "a"),
    ({"enum": [True, None, "a", 3, 0.5]}, 0.5),
    ({"enum": [["a"], {"k": "ä"}]}, {"k": "ä"}),
    ({"enum": ["a"], "nullable": True}, None),
    ({"const": False}, False),
    (INTEGER, -12),
    ({"type": "integer", "minimum": 0, "maximum": 20}, 12),
    ({"type": ["integer", "null"], "minimum": 0}, None),
    (NUMBER, 1e-07),
    (NUMBER, 1e20),
    (NUMBER, 2.5),
    ({"type": "array", "items": BOOLEAN}, [True, False]),
    ({"type": "array", "items": {"type": ["string", "null"]}}, ["a", None]),
    (OBJECT, {"a": None, "b": [True, {"c": "d\n"}]}),
    ({"properties": {"a": INTEGER}}, {"a": 1}),
    ({"items": INTEGER}, [1]),
    ({"type": "object", "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, {"b": 1}),
    ({"type": "float"}, 0.5),
    ({"type": "double"}, 0.5),
    ({"type": "int"}, 5),
    ({"type": "uint64"}, 5),
    ({"type": "bool"}, True),
    ({"type": "dict"}, {"a": 1}),
    ({"type": "dict[str, int]"}, {"a": 1}),
    ({"type": "list"}, [1]),
    ({"type": "List[str]"}, ["a"]),
    ({"type": "tuple"}, [1, "a"]),
    ({"type": "string[]"}, ["a"]),
    ({"type": "str"}, "5"),
    ({"type": "STRING"}, "5"),
    ({"type": "Optional[int]"}, None),
    ({"type": "int | None"}, 7),
    ({"type": "none"}, None),
    ({"type": "any"}, "text"),
    ({"type": "any"}, {"a": [1]}),
]


@pytest.mark.parametrize(("schema", "value"), VALUES)
def test_forced_calls_take_what_templates_write_and_it_comes_back(compiler, tokenizer, tags, schema, value):
    tools = tools_with(schema, {"flag": BOOLEAN})
    grammar = call_grammar(tools, ("f",), **tags)
    for text in templates_forms(value):
        assert accepts(compiler, tokenizer, grammar, call_of(text))
        back = tools.convert("f", "x", text)
        assert back == value
        assert isinstance(back, bool) is isinstance(value, bool)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (BOOLEAN, "yes"),
        ({"type": "bool"}, "1"),
        ({"type": "int"}, "1.5"),
        ({"type": "float"}, "one"),
        ({"type": "dict"}, "[1]"),
        ({"type": "list"}, "{}"),
        ({"type": "Optional[int]"}, "x"),
        ({"enum": ["a", True]}, "b"),
        ({"type": "integer", "minimum": 0}, "-1"),
        ({"type": "object", "properties": {"a": INTEGER}, "unevaluatedProperties": False}, '{"b": 1}'),
        ({"type": "object", "minProperties": 2}, '{"b": 1}'),
        ({"type": "object", "maxProperties": 1}, '{"b": 1, "c": 1}'),
    ],
)
def test_types_still_hold(compiler, tokenizer, tags, schema, text):
    assert not accepts(compiler, tokenizer, call_grammar(tools_with(schema), ("f",), **tags), call_of(text))


# What the library cannot express: of one property, and of the whole.
BEYOND = [
    ({"type": "array", "items": {"type": "string", "pattern": "^(?=a)b?a+$"}}, ["aa"], "pattern"),
    ({"type": "array", "items": {"type": "string", "pattern": "(?<!x)y"}}, ["y"], "pattern"),
    ({"type": "array", "items": {"type": "string", "pattern": r"(a)\1"}}, ["aa"], "pattern"),
    ({"type": "array", "items": {"type": "string", "pattern": "(("}}, ["a"], "pattern"),
    ({"type": "array", "items": {"type": "string", "format": "of-its-own"}}, ["a"], "format"),
    ({"type": "array", "items": INTEGER, "uniqueItems": True}, [1, 2], "uniqueItems"),
    ({"type": "array", "contains": INTEGER, "minContains": 1}, [1], "contains"),
    ({"type": "object", "propertyNames": {"pattern": "^a"}}, {"a": 1}, "propertyNames"),
    ({"type": "object", "dependentRequired": {"a": ["b"]}}, {"a": 1, "b": 2}, "dependentRequired"),
    ({"type": "object", "not": {"required": ["a"]}}, {"b": 1}, "not"),
    ({"type": "object", "if": {}, "then": {}, "else": {}}, {"b": 1}, "if"),
    ({"type": "object", "patternProperties": {"^a": {}, "^a.": {}}}, {"ab": 1}, "patternProperties"),
    ({"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}, {"a": [1]}, "uniqueItems"),
    (
        {"type": "object", "allOf": [{"type": "object"}], "unevaluatedProperties": False},
        {"a": 1},
        "unevaluatedProperties",
    ),
    ({"type": "object", "minProperties": 3, "properties": {"a": {}}}, {"a": 1, "b": 2, "c": 3}, "minProperties"),
    ({"type": "object", "maxProperties": 2, "properties": {"a": {}}}, {"b": 1}, "maxProperties"),
]


@pytest.mark.parametrize(("schema", "value", "keyword"), BEYOND)
def test_keywords_without_a_grammar_are_left_out(compiler, tokenizer, tags, schema, value, keyword):
    text = json.dumps(value)
    calls = call_grammar(tools_with(schema), ("f",), **tags)
    assert accepts(compiler, tokenizer, calls, call_of(text))
    response_format = {"type": "json_schema", "json_schema": {"schema": schema}}
    grammar = answer_grammar(response_format)
    assert accepts(compiler, tokenizer, grammar, text)
    dropped = compiler.start(grammar).dropped
    assert any(word.startswith(keyword) for word in dropped)
    assert any(keyword in word for word in compiler.start(calls).dropped)
    assert set(dropped_keywords(response_format)) <= set(dropped)
    either = either_grammar(grammar, calls)
    assert accepts(compiler, tokenizer, either, text)
    assert accepts(compiler, tokenizer, either, call_of(text))
    assert len(compiler.start(either).dropped) >= 2


def test_what_is_left_out_belongs_to_the_request_not_to_the_compiled_text(compiler):
    formats = [{"type": "json_schema", "schema": {"type": "array", word: True}} for word in ("uniqueItems", "contains")]
    grammars = [answer_grammar(one) for one in formats]
    assert grammars[0] == grammars[1]
    assert [compiler.start(one).dropped for one in grammars] == [("uniqueItems at #",), ("contains at #",)]


def test_nothing_is_left_out_of_what_a_grammar_can_say():
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "t",
        "description": "d",
        "type": "object",
        "properties": {
            "a": {"type": "string", "pattern": "^[a-z]+$", "minLength": 1, "maxLength": 5, "examples": ["a"]},
            "b": {"type": "string", "format": "date-time"},
            "c": {"type": "number", "minimum": 0, "exclusiveMaximum": 1, "multipleOf": 0.25},
            "d": {"type": "array", "items": {"$ref": "#/$defs/x"}, "minItems": 1, "uniqueItems": False},
            "e": {"anyOf": [{"$ref": "#/$defs/x"}, {"type": "null"}], "default": None},
            "f": {"allOf": [{"$ref": "#/$defs/x"}], "title": "F"},
        },
        "required": ["a"],
        "additionalProperties": False,
        "$defs": {"x": {"type": "object", "properties": {"y": {"type": "integer"}}}},
    }
    assert dropped_keywords({"type": "json_schema", "schema": schema}) == ()


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "objekt"},
        {"type": ["integer", "sting"]},
        {"$ref": "#/$defs/none"},
        {"properties": {"a": {"type": 5}}},
        {"properties": []},
        {"anyOf": "x"},
        {"enum": []},
        {"items": 3},
        {"minLength": -1},
        {"required": "a"},
    ],
)
def test_schemas_that_are_none_are_refused_in_an_answer_and_left_out_of_tools(compiler, tokenizer, tags, schema):
    with pytest.raises(InvalidArgumentError, match=r"response_format: the grammar is not valid: .* \(at #"):
        answer_grammar({"type": "json_schema", "schema": schema})
    grammar = call_grammar(tools_with({"type": "object", "properties": {"a": schema}}), ("f",), **tags)
    assert accepts(compiler, tokenizer, grammar, call_of('{"b": 1}'))
    assert grammar.dropped


@pytest.mark.parametrize("schema", [{"type": "objekt"}, {"type": 5}, {"anyOf": []}, {"enum": []}, "text", 5, None, []])
def test_one_strange_parameter_does_not_fail_the_others(compiler, tokenizer, tags, schema):
    properties = {"x": {"type": "integer"}, "y": schema}
    tools = ToolSchemas([{"name": "f", "parameters": {"properties": properties, "required": ["x"]}}])
    grammar = call_grammar(tools, ("f",), **tags)
    assert accepts(compiler, tokenizer, grammar, call_of("5"))
    assert not accepts(compiler, tokenizer, grammar, call_of("five"))


def test_schema_that_the_library_refuses_is_left_out_of_its_parameter_only(compiler, tokenizer, tags):
    # Nothing fits both; the library finds out while it compiles.
    impossible = {"type": "object", "properties": {"a": {"type": "string", "enum": [1]}}, "required": ["a"]}
    properties = {"x": {"type": "array", "items": INTEGER}, "y": impossible}
    tools = ToolSchemas([{"name": "f", "parameters": {"properties": properties, "required": ["x"]}}])
    grammar = call_grammar(tools, ("f",), **tags)
    assert accepts(compiler, tokenizer, grammar, call_of("[5]"))
    assert not accepts(compiler, tokenizer, grammar, call_of('["a"]'))
    assert "all of the schema at f.y" in compiler.start(grammar).dropped


def test_many_choices_are_one_terminal(compiler, tokenizer, tags):
    choices = [f"value {at * 7919 % 1_000_003}" for at in range(3_000)]
    grammar = call_grammar(tools_with({"enum": choices}), ("f",), **tags)
    assert accepts(compiler, tokenizer, grammar, call_of(choices[-1]))
    assert not accepts(compiler, tokenizer, grammar, call_of("value x"))


def test_choices_and_names_that_no_token_holds(compiler, tokenizer, tags):
    properties = {"x": {"enum": ["\ud800", "a", {"b": "\udfff"}]}, "\ud800": {"type": "integer"}}
    tools = ToolSchemas([{"name": "f", "parameters": {"properties": properties}}])
    grammar = call_grammar(tools, ("f",), **tags)
    assert accepts(compiler, tokenizer, grammar, call_of("a"))


def test_definitions_are_written_for_the_parameters_that_use_them(tags):
    definitions = {f"d{at}": {"type": "object", "properties": {"a": {"const": "x" * 100}}} for at in range(50)}
    properties = {f"p{at}": {"$ref": f"#/$defs/d{at}"} for at in range(50)}
    tools = ToolSchemas([{"name": "f", "parameters": {"properties": properties, "$defs": definitions}}])
    assert call_grammar(tools, ("f",), **tags).count("x" * 100) == 50


TOOLS = {
    "enum of f.x": [{"x": {"enum": [f"value {at}" for at in range(90_000)]}}],
    "enum of f.": [{f"x{at}": {"enum": [f"value {at} {one}" for one in range(40)]} for at in range(2_000)}],
    "all parameters of f": [{f"p{at}": {"type": "string"} for at in range(20_000)}],
    "all parameters of g": [{f"p{at}": {"type": "integer"} for at in range(3_000)}] * 2,
    "all of the schema at": [{f"p{at}": {"type": "array", "prefixItems": [{}] * 400} for at in range(30)}],
}


@pytest.mark.parametrize("dropped", TOOLS)
def test_tools_beyond_a_grammar_are_left_out(compiler, tokenizer, tags, dropped):
    tools = [
        {"name": name, "parameters": {"properties": properties}}
        for name, properties in zip("fg", TOOLS[dropped], strict=False)
    ]
    grammar = call_grammar(ToolSchemas(tools), [tool["name"] for tool in tools], **tags)
    assert any(keyword.startswith(dropped) for keyword in grammar.dropped)
    constraint = compiler.start(grammar)
    call = f"<tool_call>\n<function={tools[-1]['name']}>\n</function>\n</tool_call>"
    for token in tokenizer.encode(call):
        mask = constraint.mask()
        assert mask[token // 32] >> (token % 32) & 1
        constraint.accept(token)


def test_parameters_beyond_a_grammar_are_still_parameters(compiler, tokenizer, tags):
    properties = {f"p{at}": {"type": "integer"} for at in range(6_000)}
    grammar = call_grammar(ToolSchemas([{"name": "f", "parameters": {"properties": properties}}]), ["f"], **tags)
    parameters = "<parameter=p5>\n7\n</parameter>\n<parameter=p3>\nx\ny\n</parameter>\n"
    constraint = compiler.start(grammar)
    for token in tokenizer.encode(f"<tool_call>\n<function=f>\n{parameters}</function>\n</tool_call>"):
        mask = constraint.mask()
        assert mask[token // 32] >> (token % 32) & 1
        constraint.accept(token)
