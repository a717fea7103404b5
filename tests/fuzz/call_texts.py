"""Strategies for what a model writes around tool calls, for values, and for the schemas of parameters."""

from hypothesis import strategies as st

__all__ = ["FRAGMENTS", "TYPES", "cuts", "json_values", "schemas", "texts"]

FRAGMENTS = [
    "<tool_call>", "</tool_call>", "<function=f>", "<function=g>", "<function=h>", "</function>", "<parameter=n>",
    "<parameter=s>", "<parameter=o>", "</parameter>", "<think>", "</think>", "\n", "\r\n", " ", "<", ">", "</", "{",
    '{"name": "f", "arguments": {"n": 1}}', '{"a": [1]}', "}", "7", "3.0", "text", "\u00e9\U0001f600", "<function=",
    "<parameter=", "<tool_", "</func", "\u2028", "\x00", '"', "`", "```", "\n```\n", "\n~~~~\n", "\n\n", "</thi",
    "<tool_call>\n<function=f>\n<parameter=s>\n", "\n</parameter>\n</function>\n</tool_call>", "</parameter>\n",
    "<tool_call>\n<function=g>\n</function>\n</tool_call>", "\n    ", "- ", "> ",
    "'", "#", "//", "/*", "{'name': 'f', 'arguments': {'n': 1,}}", "```json\n", "\n   ", "<tool_call>\n",
]  # fmt: skip
texts = st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.text(max_size=4)), max_size=24).map("".join)
cuts = st.lists(st.integers(0, 200), max_size=12)
numbers = st.floats(allow_nan=False, allow_infinity=False)
strings = st.text(st.characters(codec="utf-8"), max_size=12)
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), numbers, strings),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(strings, inner, max_size=3)),
    max_leaves=6,
)
TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
schemas = st.recursive(
    st.one_of(
        st.just({}),
        st.builds(lambda kind: {"type": kind}, st.sampled_from([*TYPES.values(), "null", "odd", 3])),
        st.builds(lambda kinds: {"type": kinds}, st.lists(st.sampled_from([*TYPES.values(), "null"]), max_size=3)),
        st.builds(lambda choices: {"enum": choices}, st.lists(json_values, max_size=3)),
        st.just({"$ref": "#/$defs/x"}),
        st.just({"$ref": "#"}),
        st.none(),
    ),
    lambda inner: st.builds(lambda word, branches: {word: branches}, st.sampled_from(["anyOf", "oneOf", "allOf"]),
                            st.lists(inner, max_size=3)),
    max_leaves=5,
)  # fmt: skip
