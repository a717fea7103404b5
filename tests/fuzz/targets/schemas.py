"""JSON schemas from strangers, graphs of references above all: the form of an answer, of a call, of its values."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from fuzz.call_texts import FRAGMENTS, json_values, schemas
from fuzz.target import Attempt, Target
from lily import Model
from lily.chat import ToolSchemas
from lily.errors import LilyError
from lily_tiny import CHECKPOINT

__all__ = ["TARGETS"]

_NAMES = [f"d{at}" for at in range(12)]
_references = st.sampled_from(
    [*(f"#/$defs/{name}" for name in _NAMES), "#", "#/$defs", "#/anyOf/0", "#/properties/p", "x"]
)
_refs = st.builds(lambda to: {"$ref": to}, _references)
_leaves = st.one_of(
    _refs, _refs, schemas,
    st.builds(lambda kind: {"type": kind}, st.sampled_from(["string", "integer", "array", "object"])),
    st.builds(lambda text: {"type": "string", "pattern": text},
              st.sampled_from(["^a+$", "(a|b){3,900}", "(", "(?=a)b", "\\p{L}{2,}", "([a-z]{1,99}){1,99}", "^(a+)+$"])),
    st.builds(lambda least, most: {"type": "string", "minLength": least, "maxLength": most},
              st.integers(-1, 10**9), st.integers(-1, 10**9)),
    st.builds(lambda least, most: {"type": "integer", "minimum": least, "maximum": most},
              st.integers(-(2**70), 2**70), st.integers(-(2**70), 2**70)),
    st.builds(lambda item, least, most: {"type": "array", "items": item, "minItems": least, "maxItems": most},
              _refs, st.integers(0, 10**6), st.integers(0, 10**9)),
)  # fmt: skip
_branches = st.one_of(
    _leaves,
    st.builds(lambda word, one, times: {word: [one] * times}, st.sampled_from(["anyOf", "oneOf", "allOf"]), _refs,
              st.integers(1, 30)),
    st.builds(lambda word, some: {word: some}, st.sampled_from(["anyOf", "oneOf", "allOf"]),
              st.lists(_leaves, min_size=1, max_size=20)),
    st.builds(lambda some: {"type": "object", "properties": some, "required": list(some)[:3]},
              st.dictionaries(st.sampled_from(["p", "q", "r s", "<", "\x00"]), _leaves, max_size=4)),
)  # fmt: skip
# Each definition names the next one several times: walking paths instead of definitions takes for ever.
_diamonds = st.builds(
    lambda width, word: {
        "$defs": {name: {word: [{"$ref": f"#/$defs/{after}"}] * width}
                  for name, after in zip(_NAMES, [*_NAMES[1:], _NAMES[0]], strict=True)},
        "$ref": f"#/$defs/{_NAMES[0]}",
    },
    st.integers(2, 20), st.sampled_from(["anyOf", "oneOf", "allOf"]),
)  # fmt: skip
_deep = st.builds(
    lambda depth, word: f'{{"{word}":' * depth + '{"type": "string"}' + "}" * depth,
    st.sampled_from([2, 50, 500, 900]), st.sampled_from(["not", "items", "additionalProperties", "if"]),
)  # fmt: skip
_graphs = st.builds(
    lambda definitions, root: {"$defs": definitions, **(root or {})},
    st.dictionaries(st.sampled_from(_NAMES), _branches, max_size=12), _branches,
)  # fmt: skip
_texts = st.one_of(st.sampled_from(FRAGMENTS), json_values.map(json.dumps), st.just("[" * 500))


@contextlib.contextmanager
def _prepare(_: Path) -> Iterator[Attempt]:
    with Model.load(CHECKPOINT, threads=1, max_context=4096) as model:

        def attempt(value: dict[str, Any]) -> str:
            schema, use = json.loads(value["schema"]), value["use"]
            parameters = {"type": "object", "properties": {"p": schema}, "required": ["p"], **_definitions(schema)}
            tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
            if use == "values":
                converted = ToolSchemas(tools).convert("f", "p", value["text"])
                json.dumps(converted, ensure_ascii=False).encode()
                return "converted"
            form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
            options = {"tool_choice": "required"} if use == "call" else {"response_format": form}
            given = tools if use == "call" else None
            try:
                with contextlib.closing(model.chat(thinking=False, max_tokens=3, tools=given)) as chat:
                    chat.ask("Hi", **options)
            except LilyError as error:
                assert len(str(error)) < 4000
                return "refused"
            return "written"

        yield attempt
        assert model.chat(thinking=False, max_tokens=3).ask("Hi").content


def _definitions(schema: Any) -> dict[str, Any]:
    found = schema.get("$defs") if isinstance(schema, dict) else None
    return {"$defs": found} if isinstance(found, dict) else {}


_schemas = st.one_of(_graphs.map(json.dumps), _graphs.map(json.dumps), _diamonds.map(json.dumps), _deep)  # as texts
_inputs = st.fixed_dictionaries(
    {"schema": _schemas, "use": st.sampled_from(["answer", "call", "values"]), "text": _texts}
)
TARGETS = [Target("schemas", _inputs, _prepare, 250, frozenset({"refused", "written", "converted"}))]
