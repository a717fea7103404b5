"""Conversion of argument texts by JSON schema: what fits becomes typed, what does not stays text."""

import pytest

from lily.chat.argument_values import ToolSchemas, convert

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
    ("1e999", NUMBER, "1e999"),
    ("NaN", NUMBER, "NaN"),
    ("5.0", NUMBER, 5.0),
    ("5", NUMBER, 5),
    ("0.25", NUMBER, 0.25),
    ("true", BOOLEAN, True),
    ("True", BOOLEAN, True),
    ("FALSE", BOOLEAN, False),
    ("yes", BOOLEAN, "yes"),
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
