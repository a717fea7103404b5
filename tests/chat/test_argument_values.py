"""Conversion of argument texts by JSON schema: what fits becomes typed, what does not stays text."""

import json
import time

import pytest

from lily.chat import argument_values
from lily.chat.argument_values import ToolSchemas, convert, is_text
from lily.chat.json_values import MISFIT
from lily.errors import InvalidArgumentError
from parsing import parse_every_way

INTEGER, NUMBER, STRING = {"type": "integer"}, {"type": "number"}, {"type": "string"}
BOOLEAN, NULL, ARRAY, OBJECT = {"type": "boolean"}, {"type": "null"}, {"type": "array"}, {"type": "object"}

CASES = [
    ("7", INTEGER, 7),
    (" 7 ", INTEGER, 7),
    ("-0", INTEGER, 0),
    ("140.0", INTEGER, 140),
    ("1e3", INTEGER, 1000),
    ("140.5", INTEGER, 140.5),
    ("007", INTEGER, "007"),
    ("1_000", INTEGER, "1_000"),
    ("٣", INTEGER, "٣"),
    ("9" * 5000, INTEGER, "9" * 5000),
    (".5", NUMBER, 0.5),
    ("-.5", NUMBER, -0.5),
    ("5.", NUMBER, 5.0),
    ("5.", INTEGER, 5),
    ("+3", INTEGER, 3),
    ("+3", NUMBER, 3),
    ("+.5e1", INTEGER, 5),
    (".", NUMBER, "."),
    ("1e3", NUMBER, 1000.0),
    ("1e23", INTEGER, 10**23),
    ("9007199254740993.0", INTEGER, 9007199254740993),
    ("9007199254740993.5", INTEGER, 9007199254740993.5),
    ("1_000", NUMBER, "1_000"),
    ("1,000", NUMBER, "1,000"),
    ("0x10", INTEGER, "0x10"),
    ("\uff10", INTEGER, "\uff10"),
    ("\uff15", NUMBER, "\uff15"),
    ("nan", NUMBER, "nan"),
    ("inf", NUMBER, "inf"),
    ("-Infinity", NUMBER, "-Infinity"),
    (".5", STRING, ".5"),
    ("+3", {"enum": [3, 4]}, 3),
    ("1e999", NUMBER, "1e999"),
    ("NaN", NUMBER, "NaN"),
    ("5.0", NUMBER, 5.0),
    ("5", NUMBER, 5),
    ("0.25", NUMBER, 0.25),
    ("true", BOOLEAN, True),
    ("True", BOOLEAN, True),
    ("FALSE", BOOLEAN, False),
    ("TRUE", BOOLEAN, True),
    ("tRue", BOOLEAN, True),
    ("TRUE", {}, "TRUE"),
    ("TRUE", NUMBER, "TRUE"),
    ("yes", BOOLEAN, "yes"),
    ("None", BOOLEAN, None),
    ("NULL", NULL, None),
    ("Null", INTEGER, None),
    ("none", NULL, None),
    ("none", {"type": ["integer", "null"]}, None),
    ("NULL", {"type": ["string", "null"]}, "NULL"),
    ("NULL", STRING, "NULL"),
    ("nil", NULL, "nil"),
    ("1", BOOLEAN, "1"),
    ("null", NULL, None),
    ("null", INTEGER, None),
    ("null", STRING, "null"),
    ("7", STRING, "7"),
    (" 7 ", STRING, " 7 "),
    ("7", {}, "7"),
    ("7", None, "7"),
    ("7", {"type": "unheard-of"}, "7"),
    ("[1, 2.5, null]", ARRAY, [1, 2.5, None]),
    ("['a', True]", ARRAY, ["a", True]),
    ("[1, 2", ARRAY, "[1, 2"),
    ('{"a": 1}', ARRAY, '{"a": 1}'),
    ('{"a": {"b": [true]}}', OBJECT, {"a": {"b": [True]}}),
    ("{'a': None}", OBJECT, {"a": None}),
    ("{1: 2}", OBJECT, "{1: 2}"),
    ("{" * 3000, OBJECT, "{" * 3000),
    ("[" * 100_000, ARRAY, "[" * 100_000),
    ('{"a": "\\ud800"}', OBJECT, '{"a": "\\ud800"}'),
    ('{"a": NaN}', OBJECT, '{"a": NaN}'),
    ("null", {"type": ["string", "null"]}, None),
    ("x", {"type": ["string", "null"]}, "x"),
    ("3", {"type": ["integer", "null"]}, 3),
    ("3", {"type": "integer", "nullable": True}, 3),
    ("null", {"type": "string", "nullable": True}, None),
    ("3", {"anyOf": [INTEGER, NULL]}, 3),
    ("null", {"anyOf": [INTEGER, NULL]}, None),
    ("soon", {"anyOf": [INTEGER, NULL]}, "soon"),
    ("3", {"anyOf": [INTEGER, STRING]}, 3),
    ("3", {"anyOf": [STRING, INTEGER]}, "3"),
    ("a", {"oneOf": [INTEGER, ARRAY, STRING]}, "a"),
    ("[3]", {"oneOf": [INTEGER, ARRAY, STRING]}, [3]),
    ("b", {"enum": ["a", "b"]}, "b"),
    (" b\n", {"type": "string", "enum": ["a", "b"]}, "b"),
    ("2", {"enum": [1, 2]}, 2),
    ("2", {"enum": ["2", 2]}, "2"),
    ("true", {"enum": [1, True]}, True),
    ("null", {"enum": ["a", None]}, None),
    ("z", {"enum": ["a", "b"]}, "z"),
    ("4", {"type": "integer", "enum": [1, 2]}, 4),
    ("k", {"const": "k"}, "k"),
    ('{"a": 1}', {"properties": {"a": INTEGER}}, {"a": 1}),
    ("[1]", {"items": INTEGER}, [1]),
    # Line breaks inside strings, JSON inside a string, Python's forms.
    ('{"a": "x\ny\t"}', OBJECT, {"a": "x\ny\t"}),
    ('["x\r\ny"]', ARRAY, ["x\r\ny"]),
    ("{'a': 'x\ny', 'b': True}", OBJECT, {"a": "x\ny", "b": True}),
    ("['it\\'s\n\"q\"']", ARRAY, ['it\'s\n"q"']),
    ('"[1, 2]"', ARRAY, [1, 2]),
    ('"{\\"a\\": [1]}"', OBJECT, {"a": [1]}),
    ('"{\\"a\\": [1]}"', ARRAY, '"{\\"a\\": [1]}"'),
    ('"text"', OBJECT, '"text"'),
    # A string or an array or object.
    ('["a"]', {"type": ["string", "array"]}, ["a"]),
    ('{"a": "x\ny"}', {"anyOf": [STRING, OBJECT]}, {"a": "x\ny"}),
    ('{"a": 1}', {"anyOf": [ARRAY, OBJECT, STRING]}, {"a": 1}),
    ('{"a": 1}', {"type": ["string", "array"]}, '{"a": 1}'),
    ("{a: 1}", OBJECT, {"a": 1}),
    ("```json\n[1,]\n```", ARRAY, [1]),
    ("```json\n[1]\n```", {"type": ["string", "array"]}, "```json\n[1]\n```"),
    ('[0x10, """a"""]', ARRAY, [16, "a"]),
    ("{a: 1}", {"type": ["string", "object"]}, "{a: 1}"),
    ("{'a': 1}", {"type": ["string", "object"]}, "{'a': 1}"),
    ('"[1]"', {"type": ["string", "array"]}, '"[1]"'),
    (" text ", {"type": ["string", "array"]}, " text "),
    ('["a"]', STRING, '["a"]'),
    # Quoted scalars where a string cannot be meant.
    ('"5"', INTEGER, 5),
    ('"5.0"', INTEGER, 5),
    ('" 7 "', NUMBER, 7),
    ('"2.5"', NUMBER, 2.5),
    ('"true"', BOOLEAN, True),
    ('"5"', {"anyOf": [INTEGER, STRING]}, 5),
    ('"5"', STRING, '"5"'),
    ('"b"', {"enum": ["a", "b"]}, "b"),
    ('"b"', {"enum": ["b", '"b"']}, '"b"'),
    # None, as templates that write Python's forms teach it.
    ("None", {"type": ["string", "null"]}, None),
    ("None", {"anyOf": [STRING, NULL]}, None),
    ("None", {"type": "string", "nullable": True}, None),
    ("None", NULL, None),
    ("None", INTEGER, None),
    ("None", {"enum": ["a", None]}, None),
    ("None", {"enum": ["None", None]}, "None"),
    ("None", STRING, "None"),
    ("none", {"type": ["string", "null"]}, "none"),
    # Types as vendors and programmers write them.
    ("7", {"type": "int"}, 7),
    ("7", {"type": "uint32"}, 7),
    ("7", {"type": "long"}, 7),
    ("7.5", {"type": "float"}, 7.5),
    ("7.5", {"type": "Double"}, 7.5),
    ("7", {"type": "num"}, 7),
    ("True", {"type": "bool"}, True),
    ("{'a': 1}", {"type": "dict"}, {"a": 1}),
    ('{"a": 1}', {"type": "dict[str, Any]"}, {"a": 1}),
    ('{"a": 1}', {"type": "OBJECT"}, {"a": 1}),
    ("[1]", {"type": "list"}, [1]),
    ("[1]", {"type": "List[int]"}, [1]),
    ("[1]", {"type": "integer[]"}, [1]),
    ("[1]", {"type": "tuple"}, [1]),
    ("7", {"type": "str"}, "7"),
    ("7", {"type": "text"}, "7"),
    ("None", {"type": "Optional[str]"}, None),
    ("7", {"type": "Optional[int]"}, 7),
    ("7", {"type": "int | None"}, 7),
    ("7", {"type": "int | unheard-of"}, "7"),
    ("7", {"type": "any"}, "7"),
    ('{"a": 1}', {"type": "any"}, {"a": 1}),
    ("8", {"$ref": "#/$defs/count"}, 8),
    ("8", {"allOf": [{"$ref": "#/$defs/count"}]}, 8),
    ("8", {"$ref": "#/$defs/loop"}, "8"),
    ("8", {"$ref": "#/$defs/missing"}, "8"),
    ("8", {"$ref": "https://example.org/x"}, "8"),
]
ROOT = {"$defs": {"count": INTEGER, "loop": {"$ref": "#/$defs/loop"}}}


@pytest.mark.parametrize(("text", "schema", "expected"), CASES)
def test_value(text, schema, expected):
    value = convert(text, schema, ROOT)
    assert value == expected
    assert type(value) is type(expected)


def test_schemas_are_found_in_each_form_of_a_definition():
    properties = {"properties": {"n": INTEGER}}
    tools = ToolSchemas(
        [
            {"type": "function", "function": {"name": "nested", "parameters": properties}},
            {"name": "flat", "parameters": properties},
            {"name": "anthropic", "input_schema": properties},
            {"name": "none"},
        ]
    )
    assert [tools.convert(name, "n", "3") for name in tools.names] == [3, 3, 3, "3"]
    assert "flat" in tools
    assert "other" not in tools
    assert tools.convert("other", "n", "3") == "3"


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (STRING, True),
        ({}, True),
        (None, True),
        ({"type": "str"}, True),
        ({"type": ["string", "null"]}, False),
        ({"type": ["string", "array"]}, False),
        ({"anyOf": [STRING, OBJECT]}, False),
        ({"type": ["string", "integer"]}, False),
        ({"type": "string", "enum": ["a"]}, False),
        ({"type": "any"}, False),
        (INTEGER, False),
    ],
)
def test_texts_that_are_values_as_they_are(schema, expected):
    assert is_text(schema, ROOT) is expected
    tools = ToolSchemas([{"name": "f", "parameters": {"properties": {"x": schema}}}])
    assert tools.is_text("f", "x") is expected


LONG = 1_000_000
HOSTILE_TEXTS = [
    "[" * LONG,
    "{'a':" * LONG,
    "[" + "-" * LONG + "1]",
    "[" + "1," * LONG,
    "['" + "\\'" * 40_000,
    "['" + "\n" * 40_000 + "'",
    "[" + "'\n" * 30_000,
    '"' + "\\" * LONG,
    '{"a": "' + "x\n" * LONG + '"',
    "9" * LONG,
    "1." + "0" * LONG + "x",
    "1e" + "9" * LONG,
    " " * LONG + "x",
    "[" + "(" * 50_000,
    "[" + "1+" * 30_000 + "1j]",
]


@pytest.mark.parametrize("text", HOSTILE_TEXTS, ids=range(len(HOSTILE_TEXTS)))
def test_long_texts_take_time_for_their_length(text):
    choices = [*({"a": at} for at in range(500)), *range(500), *map(str, range(500)), True, None]
    for schema in (ARRAY, OBJECT, INTEGER, NUMBER, {"type": ["string", "array", "object"]}, {"enum": choices}):
        began = time.process_time()
        assert convert(text, schema) == text
        assert time.process_time() - began < 10  # it takes a tenth of a second; what is not linear takes minutes


def test_choices_are_parsed_once(monkeypatch):
    parsed = []
    monkeypatch.setattr(argument_values, "load_structure", lambda *given: parsed.append(given) or MISFIT)
    assert convert("[7]", {"enum": [[at] for at in range(1_000)]}) == "[7]"
    assert len(parsed) == 1


def test_schemas_of_a_request_are_read_once(monkeypatch):
    read = []
    alternatives = argument_values._alternatives
    monkeypatch.setattr(argument_values, "_alternatives", lambda *given: read.append(given) or alternatives(*given))
    tools = ToolSchemas([{"name": "f", "parameters": {"properties": {"x": INTEGER}}}])
    for _ in range(100):
        assert tools.convert("f", "x", "5") == 5
        assert not tools.is_text("f", "x")
    assert len(read) == 1


@pytest.mark.parametrize("tools", [None, "x", 5, [None], ["f"], [5]])
def test_tools_that_are_none(tools):
    with pytest.raises(InvalidArgumentError, match="tools"):
        ToolSchemas(tools)


PARAMETERS = {
    "n": {"type": "integer"},
    "l": {"type": "array", "items": {"type": "integer"}},
    "o": {"type": "object"},
    "b": {"type": "boolean"},
    "z": {"type": ["integer", "null"]},
    "s": {"type": "string"},
    "u": {"type": ["string", "integer"]},
    "e": {"enum": ["5", 7]},
}
WRITTEN = {"n": "5", "l": "[1, 2]", "o": '{"a": 1}', "b": "True", "z": "None", "s": "5", "u": "5", "e": "5", "x": "5"}
READ = {"n": 5, "l": [1, 2], "o": {"a": 1}, "b": True, "z": None, "s": "5", "u": "5", "e": "5", "x": "5"}


@pytest.mark.parametrize(
    "form", ['<tool_call>\n{"name": "f", "arguments": %s}\n</tool_call>', "<function=f>%s</function>"]
)
def test_strings_in_calls_of_json_become_what_the_tool_takes(form):
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"properties": PARAMETERS}}}]
    result = parse_every_way(form % json.dumps(WRITTEN), reasoning=False, tools=tools)
    assert result["calls"] == [("f", READ)]
