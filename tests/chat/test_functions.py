"""Python functions as tools: schemas from signatures and docstrings, and typed calls."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Optional, TypedDict, Union

import pytest

from lily.chat import PythonTool
from lily.chat.docstrings import parse_docstring
from lily.chat.functions import as_definitions
from lily.errors import InvalidArgumentError


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    x: float
    y: float = 0.0
    tags: list[str] = field(default_factory=list)


class Address(TypedDict, total=False):
    street: str
    number: int


TYPES = [
    (str, {"type": "string"}),
    (int, {"type": "integer"}),
    (float, {"type": "number"}),
    (bool, {"type": "boolean"}),
    (None, {"type": "null"}),
    (Any, {}),
    (Optional[int], {"type": ["integer", "null"]}),  # noqa: UP045
    (int | None, {"type": ["integer", "null"]}),
    (Union[str, list[int]], {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer"}}]}),  # noqa: UP007
    (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
    (Literal["a", 1, None], {"enum": ["a", 1, None]}),
    (list, {"type": "array"}),
    (list[str], {"type": "array", "items": {"type": "string"}}),
    (Sequence[bool], {"type": "array", "items": {"type": "boolean"}}),
    (dict, {"type": "object"}),
    (dict[str, float], {"type": "object", "additionalProperties": {"type": "number"}}),
    (Colour, {"type": "string", "enum": ["red", "blue"]}),
    (Annotated[int, "how many"], {"type": "integer", "description": "how many"}),
    (
        Point,
        {
            "type": "object",
            "properties": {
                "x": {"type": "number"},
                "y": {"type": "number"},
                "tags": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["x"],
        },
    ),
    (Address, {"type": "object", "properties": {"street": {"type": "string"}, "number": {"type": "integer"}}}),
]


@pytest.mark.parametrize(("hint", "schema"), TYPES)
def test_schema_of_a_type(hint, schema):
    def tool(value):
        return value

    tool.__annotations__["value"] = hint
    assert PythonTool(tool).definition["function"]["parameters"]["properties"]["value"] == schema


def test_definition_of_a_function():
    def find(pattern: str, limit: int = 10, colour: Colour = Colour.RED) -> list[str]:
        """Find things.

        All of them.

        Parameters
        ----------
        pattern : str
            What to look for,
            on two lines.
        limit : int, optional
            How many.

        Returns
        -------
        list of str
            Things.
        """
        return []

    assert PythonTool(find).definition == {
        "type": "function",
        "function": {
            "name": "find",
            "description": "Find things.\n\nAll of them.",
            "parameters": {
                "type": "object",
                "properties": {
                    "pattern": {"type": "string", "description": "What to look for, on two lines."},
                    "limit": {"type": "integer", "description": "How many.", "default": 10},
                    "colour": {"type": "string", "enum": ["red", "blue"]},
                },
                "required": ["pattern"],
            },
        },
    }


GOOGLE = """Find things.

Args:
    pattern (str): What to look for,
        on two lines.
    limit: How many: at most.

Returns:
    pattern: not a parameter
"""
SPHINX = """Find things.

:param str pattern: What to look for,
    on two lines.
:param limit: How many: at most.
:returns: things
"""
NUMPY = """Find things.

Parameters
----------
pattern
    What to look for,
    on two lines.
limit : int
    How many: at most.

Raises
------
limit
    not a parameter
"""


@pytest.mark.parametrize("text", [GOOGLE, SPHINX, NUMPY])
def test_docstring_styles(text):
    found = parse_docstring(text.strip())
    assert found.description == "Find things."
    assert found.parameters == {"pattern": "What to look for, on two lines.", "limit": "How many: at most."}


@pytest.mark.parametrize("text", ["", "Only this.", "Two lines\nof text: here.\n\nNote that: yes."])
def test_plain_docstrings(text):
    found = parse_docstring(text)
    assert found.description == text
    assert found.parameters == {}


def not_annotated(value):
    pass


def star(*values: int):
    pass


def keywords(**values: int):
    pass


def odd(value: complex):
    pass


def odd_keys(value: dict[int, str]):
    pass


@dataclass
class Node:
    next: "Node | None"


def endless(value: Node):
    pass


def unknown(value: "Missing"):  # noqa: F821
    pass


@pytest.mark.parametrize("function", [not_annotated, star, keywords, odd, odd_keys, endless, unknown])
def test_what_has_no_schema_is_refused_by_name(function):
    with pytest.raises(InvalidArgumentError, match=rf"{function.__name__}\(\)"):
        PythonTool(function)


def test_arguments_become_what_the_annotations_say():
    def tool(
        colour: Colour,
        point: Point,
        points: list[Point],
        ratio: float,
        maybe: Colour | None = None,
        names: dict[str, Colour] | None = None,
    ):
        return colour, point, points, ratio, maybe, names

    arguments = {
        "colour": "blue",
        "point": {"x": 1, "tags": ["a"]},
        "points": [{"x": 2.5}],
        "ratio": 3,
        "maybe": "red",
        "names": {"k": "red"},
    }
    result = PythonTool(tool).call(arguments)
    expected = (Colour.BLUE, Point(1.0, 0.0, ["a"]), [Point(2.5)], 3.0, Colour.RED, {"k": Colour.RED})
    assert result == expected
    assert isinstance(result[1].x, float)


def test_arguments_that_do_not_fit_raise():
    def tool(value: int):
        return value

    for arguments in ({}, {"value": 1, "other": 2}):
        with pytest.raises(TypeError):
            PythonTool(tool).call(arguments)


def test_methods_and_callable_objects():
    class Counter:
        """Counts."""

        def __init__(self):
            self.count = 0

        def add(self, amount: int) -> int:
            """Add."""
            self.count += amount
            return self.count

    counter = Counter()
    tool = PythonTool(counter.add)
    assert tool.call({"amount": 4}) == 4
    assert tool.definition["function"]["parameters"]["required"] == ["amount"]


def test_list_of_tools():
    definition = {"type": "function", "function": {"name": "other", "parameters": {}}}
    definitions, functions = as_definitions([definition, _ok])
    assert [entry["function"]["name"] for entry in definitions] == ["other", "_ok"]
    assert list(functions) == ["_ok"]
    assert as_definitions(None) == ([], {})
    for wrong, reason in [
        ([definition, definition], "two tools"),
        ([{"type": "function"}], r"tools\[0\] has no name"),
        ([3], "must be a function"),
        (definition, "must be a list"),
        *(
            ([{"type": "function", "function": {"name": name}}], r"tools\[0\]: .* cannot be written")
            for name in ["a>b", "<tool_call>", "<|im_end|>", "a\nb", " a", '"a"', "\t", "a" * 201]
        ),
        ([definition, {"name": "f", "parameters": [1]}], r"tools\[1\]: parameters must be a JSON schema"),
        ([{"name": "f", "input_schema": "x"}], r"tools\[0\]: input_schema must be a JSON schema"),
    ]:
        with pytest.raises(InvalidArgumentError, match=reason):
            as_definitions(wrong)


def _ok(value: int) -> int:
    return value
