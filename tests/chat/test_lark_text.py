"""Grammars that requests bring along: the schemas inside them are bounded like all others."""

import json

import numpy as np
import pytest

from lily.chat.constraints import GrammarCompiler
from lily.chat.grammars import answer_grammar, either_grammar
from lily.chat.lark_text import UNFORCED
from lily.errors import InvalidArgumentError

pytest.importorskip("llguidance")

SLOW = {
    "patternProperties": {"patternProperties": {f"^k{at}[a-z]+": {} for at in range(400)}},
    "multipleOf": {"type": "integer", "multipleOf": 1_000_003},
    "allOf": {"allOf": [{"type": "string", "pattern": f"^.*a.{{{at}}}b.*$"} for at in range(20)]},
}


@pytest.fixture(scope="module")
def compiler(model):
    return GrammarCompiler(model.tokenizer, model.stop_tokens)


def grammar_of(text):
    return answer_grammar({"type": "grammar", "grammar": text})


FORMS = {
    "a rule": "start: %json {}",
    "no space": "start: %json{}",
    "several lines": "start: %json\n\n  {}",
    "behind others": 'start: "a" %json {"type": "object"} | %json {}',
    "inside a grammar": "start: %lark {{\n  start: %json {}\n}}",
    "JSON of grammars": '{{"grammars": [{{"lark_grammar": "start: @a"}}, {{"name": "a", "json_schema": {}}}]}}',
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("keyword", SLOW)
def test_schemas_inside_a_grammar_are_bounded(compiler, form, keyword):
    text = FORMS[form]
    schema = json.dumps(SLOW[keyword])
    grammar = grammar_of(text.format(schema) if "{{" in text else schema.join(text.rsplit("{}", 1)))
    assert any(dropped.startswith(keyword) for dropped in grammar.dropped)
    assert compiler.start(grammar).mask().any()


def test_schemas_in_texts_inside_json_are_found(compiler):
    lark = f"start: %json {json.dumps(SLOW['multipleOf'])}"
    grammar = grammar_of(json.dumps({"grammars": [{"lark_grammar": lark}]}).replace("%", "\\u0025"))
    assert grammar.dropped == ("multipleOf at #",)


def test_other_grammars_stay_as_they_are():
    for text in ('start: "a" /b+/', "start: x\nx: /[%]json/", '%ignore / /\nstart: "a"'):
        assert grammar_of(text) == text + UNFORCED
    with_schema = 'start: %json {"type": "integer"} "."'
    assert grammar_of(with_schema) == with_schema + UNFORCED


def test_options_of_a_schema_are_kept(compiler, tokenizer):
    schema = {"type": "array", "items": {"const": 1}, "x-guidance": {"whitespace_flexible": False}}
    constraint = compiler.start(grammar_of(f"start: %json {json.dumps(schema)}"))
    for token in tokenizer.encode("[1,1]"):
        mask = constraint.mask()
        assert mask[token // 32] >> (token % 32) & 1
        constraint.accept(token)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("start: %json", "%json must be followed"),
        ("start: %json [", "%json must be followed"),
        ("start: %json 5", "%json must be followed"),
        ('start: %json // {}\n {"type": "object"}', "%json must be followed"),
        ("start: %json " + '{"items":' * 5_000, "%json must be followed"),
        ("start: %json " + '{"items":' * 200 + "{}" + "}" * 200, "nested too deeply"),
        ('start: %json {"type": "objekt"}', "'objekt' is not known"),
        ("{", "begins like JSON"),
        ('{"grammars": {}}', "a list of grammars"),
        ('{"grammars": [1]}', "a list of grammars"),
        ('{"grammars": ' + "[" * 5_000, "begins like JSON"),
    ],
)
def test_grammars_with_other_things_in_place_of_a_schema_are_refused(text, reason):
    with pytest.raises(InvalidArgumentError, match=f"^response_format: the grammar.*{reason}"):
        grammar_of(text)


ENDLESS = [
    "start: /a+/ start",
    "start: /(a*)+/ start",
    'start: "c" x\nx: /a+/ x',
    'start: "a" start',
    "start: %lark {\n  start: /a+/ start\n}",
    '%llguidance {"no_forcing": false}\nstart: /a+/ start',
    json.dumps({"grammars": [{"lark_grammar": "start: @a"}, {"name": "a", "lark_grammar": "start: /a+/ start"}]}),
]


@pytest.mark.parametrize("text", ENDLESS)
def test_grammars_without_an_end_go_on_for_as_long_as_tokens_are_asked_for(compiler, text):
    grammars = [grammar_of(text)]
    if not text.startswith("{"):
        grammars.append(either_grammar(grammars[0], 'start: "call"'))
    for grammar in grammars:
        constraint = compiler.start(grammar)
        for _ in range(50):
            allowed = np.unpackbits(constraint.mask().view(np.uint8), bitorder="little").nonzero()[0]
            constraint.accept(int(allowed[0]))


def test_turn_of_a_grammar_without_an_end_is_cut_off(model):
    chat = model.chat(thinking=False)
    answer = chat.ask("Hello", response_format={"type": "grammar", "grammar": "start: /a+/ start"}, max_tokens=9)
    assert answer.finish_reason == "length"
    assert set(answer.content) == {"a"}
