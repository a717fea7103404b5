"""References inside a schema: found in all their forms, never outside the document, written once."""

import json

import pytest

from lily.chat.grammar_schema import GrammarSchema
from lily.chat.schema_references import References
from lily.chat.schema_types import leaf_schemas

DOCUMENT = {
    "$id": "https://example.org/root",
    "$defs": {
        "a/b": {"type": "integer"},
        "m~n": {"type": "number"},
        "with space": {"type": "boolean"},
        "anchored": {"$anchor": "here", "type": "null"},
        "named": {"$id": "named.json", "type": "array", "items": {"type": "string"}},
    },
    "anyOf": [{"type": "string"}, {"type": "object"}],
}


@pytest.mark.parametrize(
    ("reference", "kind"),
    [
        ("#/$defs/a~1b", "integer"),
        ("#/$defs/m~0n", "number"),
        ("#/$defs/with%20space", "boolean"),
        ("#here", "null"),
        ("named.json", "array"),
        ("named.json#/items", "string"),
        ("https://example.org/root#/$defs/a~1b", "integer"),
        ("#/anyOf/1", "object"),
        ("#/anyOf/2", None),
        ("#/anyOf/-1", None),
        ("#/$defs/none", None),
        ("file:///etc/passwd", None),
        ("#" + "/$defs" * 1_000_000, None),
        ("#/anyOf/" + "9" * 5_000, None),
    ],
)
def test_references_inside_a_document(reference, kind):
    found = References(DOCUMENT).find(reference)
    assert (found and found["type"]) == kind


def test_references_in_a_circle_lead_nowhere():
    references = References({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}})
    assert references.follow({"$ref": "#/$defs/a"}) is None
    assert list(leaf_schemas({"$ref": "#/$defs/a"}, references)) == []


def test_each_target_is_written_once():
    schema = {"properties": {f"p{at}": {"$ref": "#/$defs/x"} for at in range(9)}, "$defs": {"x": {}, "unused": {}}}
    schema["$defs"]["x"] = {"type": "object", "properties": {"again": {"$ref": "#/$defs/x"}}}
    written = GrammarSchema(schema, References(schema)).schema
    assert list(written["$defs"]) == ["d0"]
    assert json.dumps(written).count('"again"') == 1
