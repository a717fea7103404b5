"""The forms of tool_choice, and the options of a turn."""

import pytest

from lily import Sampling
from lily.chat import TurnOptions
from lily.chat.tool_choice import ToolChoice, as_tool_choice
from lily.errors import InvalidArgumentError

NAMES = ("f", "g")


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ToolChoice("auto", NAMES)),
        ("auto", ToolChoice("auto", NAMES)),
        ("none", ToolChoice("none", NAMES)),
        ("required", ToolChoice("required", NAMES)),
        ("any", ToolChoice("required", NAMES)),
        ({"type": "any"}, ToolChoice("required", NAMES)),
        ({"type": "auto"}, ToolChoice("auto", NAMES)),
        ({"type": "function", "function": {"name": "g"}}, ToolChoice("required", ("g",))),
        ({"type": "function", "name": "g"}, ToolChoice("required", ("g",))),
        ({"type": "tool", "name": "f"}, ToolChoice("required", ("f",))),
    ],
)
def test_forms(choice, expected):
    assert as_tool_choice(choice, NAMES) == expected


@pytest.mark.parametrize("choice", ["f", "", 3, {"type": "tool"}, {"type": "tool", "name": "h"}, {}, []])
def test_other_forms_are_refused(choice):
    with pytest.raises(InvalidArgumentError, match="tool_choice"):
        as_tool_choice(choice, NAMES)


def test_without_tools():
    assert as_tool_choice("auto", ()).mode == "none"
    with pytest.raises(InvalidArgumentError, match="no tools"):
        as_tool_choice("required", ())


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"temprature": 1}, "unknown option 'temprature'"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_thinking_tokens": "3"}, "max_thinking_tokens"),
        ({"logprobs": True}, "logprobs"),
        ({"stop": [""]}, "stop"),
        ({"sampling": "fast"}, "no sampling profile 'fast'"),
    ],
)
def test_wrong_options_are_named(options, reason):
    with pytest.raises(InvalidArgumentError, match=reason):
        TurnOptions.of(options)
    with pytest.raises(InvalidArgumentError, match=reason):
        TurnOptions().changed(options)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"later_system": "drop"}, "later_system"),
        ({"template_options": 5}, "template_options"),
        *(({"template_options": {name: 1}}, "template_options") for name in ("self", "tools", "range", "a b", 3)),
    ],
)
def test_wrong_options_of_a_chat_are_named(model, options, reason):
    with pytest.raises(InvalidArgumentError, match=reason):
        model.chat(**options)


def test_profiles_by_name():
    assert TurnOptions.of({"sampling": "coding"}).sampling == Sampling(temperature=0.6, top_p=0.95, top_k=20)
    assert TurnOptions().sampling == "auto"
