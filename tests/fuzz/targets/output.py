"""What a model writes: the parser takes any text, and finds the same in it however it is cut."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from fuzz.call_texts import cuts, json_values, texts
from fuzz.target import Attempt, Target
from parsing import parse, parse_begun, parse_with_deltas, pieces_of, tool

__all__ = ["TARGETS"]

_TOOLS = [
    tool("f", ["n"], n={"type": "integer"}, o={"type": "object"}, s={"type": "string"}),
    tool("g"),
    tool("deep", x={"$ref": "#/properties/x"}, y={"anyOf": [{"type": "array"}, {"type": "null"}]}),
]
_long = st.builds(
    lambda text, times, tail: text * times + tail,
    st.sampled_from(["<tool_call>", "<function=f>", "<", "</think>", '{"a":', "[", "<parameter=s>\n", "\n", "`"]),
    st.sampled_from([50, 2000]), texts,
)  # fmt: skip
_calls = st.builds(
    lambda before, value, after: (
        f"{before}<tool_call>\n<function=f>\n<parameter=s>\n{value}\n</parameter>\n</function>\n</tool_call>{after}"
    ),
    st.sampled_from(["", "Well.\n\n", "<think>\n", "`"]), texts, st.sampled_from(["", "\n", "\nSo."]),
)  # fmt: skip
_inputs = st.fixed_dictionaries(
    {
        "text": st.one_of(
            texts, texts, _calls, st.builds(lambda text, value: text + str(value), texts, json_values), _long
        ),
        "cuts": cuts,
        "reasoning": st.booleans(),
        "tools": st.booleans(),
        "truncated": st.booleans(),
    }
)


@contextlib.contextmanager
def _prepare(_: Path) -> Iterator[Attempt]:
    def attempt(value: dict[str, Any]) -> str:
        text = value["text"]
        options = {"reasoning": value["reasoning"], "truncated": value["truncated"]}
        options["tools"] = _TOOLS if value["tools"] else None
        whole = parse([text], **options)
        for pieces in (pieces_of(text, value["cuts"]), list(text)):
            assert parse(pieces, **options) == whole
            if value["tools"]:
                streamed = parse_with_deltas(pieces, **options)
                del streamed["pieces"]
                assert streamed == whole
        for border in value["cuts"][:2]:
            assert parse_begun(text, min(border, len(text)), **options) == whole
        return "calls" if whole["calls"] else "text"

    yield attempt


TARGETS = [Target("output", _inputs, _prepare, 400, frozenset({"calls", "text"}))]
