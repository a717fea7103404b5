"""Structured answers of the bundled model: of the form asked for, with and without thinking, and forced calls."""

import json
import re

import pytest

from lily import Sampling
from lily.chat.argument_values import ToolSchemas
from lily.chat.constraints import GrammarCompiler, forbid
from lily.chat.grammars import answer_grammar, call_grammar
from lily.errors import InvalidArgumentError, MissingExtraError

pytest.importorskip("llguidance")

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
WILD = Sampling(temperature=1.5)


def book(title: str, pages: int, ratio: float | None = None, kinds: list[str] | None = None, flag: bool = False) -> str:
    """Write a book."""
    return title


def other(kind: str) -> str:
    """Something else."""
    return kind


def check_person(text):
    person = json.loads(text)
    assert set(person) <= {"name", "age", "tags"}
    assert isinstance(person["name"], str)
    assert len(person["name"]) <= 12
    assert isinstance(person["age"], int)
    assert 0 <= person["age"] <= 120
    assert set(person.get("tags", [])) <= {"a", "b"}


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_answer_follows_the_schema(model, thinking, seed):
    chat = model.chat(sampling=WILD, seed=seed, thinking=thinking, max_thinking_tokens=24)
    answer = chat.ask("Tell me of a person.", response_format=FORMAT, max_tokens=300)
    if answer.finish_reason == "stop":
        check_person(answer.content)
    assert bool(answer.reasoning) == thinking
    assert answer.finish_reason == "stop"


def test_answer_that_is_cut_off_says_so(model):
    def ask(tokens):
        chat = model.chat(sampling=Sampling.greedy(), thinking=False)
        return chat.ask("Tell me of Anna.", response_format=FORMAT, max_tokens=tokens)

    whole = ask(300)
    assert whole.finish_reason == "stop"
    check_person(whole.content)
    count = whole.done.usage.completion_tokens
    for tokens in (0, 1, count // 2, count - 1):
        answer = ask(tokens)
        assert answer.finish_reason == "length"
        assert whole.content.startswith(answer.content)
        assert len(answer.content) < len(whole.content)


@pytest.mark.parametrize("thinking", [True, False])
def test_other_forms(model, thinking):
    chat = model.chat(sampling=WILD, thinking=thinking, max_thinking_tokens=10, seed=3)
    answer = chat.ask("Which?", response_format={"type": "regex", "regex": r"(yes|no)/[0-9]{3}"})
    assert re.fullmatch(r"(yes|no)/[0-9]{3}", answer.content)
    answer = chat.ask("Which?", response_format={"type": "grammar", "grammar": 'start: ("ab" | "cd")  /[x-z]{4}/'})
    assert re.fullmatch(r"(ab|cd)[x-z]{4}", answer.content)
    answer = chat.ask("Which?", response_format={"type": "json_object"}, max_tokens=400)
    if answer.finish_reason == "stop":
        assert isinstance(json.loads(answer.content), dict)
    plain = chat.ask("Hello!", response_format={"type": "text"}, max_tokens=20)
    assert bool(plain.reasoning) == thinking


def test_plain_answer_of_the_model_is_left_alone_after_the_thinking(model):
    """The grammar begins where the model's own answer does: the newlines are those of the template."""
    chat = model.chat(sampling=Sampling.greedy())
    chat.ask("Tell me of Anna.", response_format=FORMAT, max_tokens=200)
    text = model.tokenizer.decode(chat.session.tokens)
    assert re.search(r"</think>\n\n\{", text)
    assert chat.ask("And?", response_format=FORMAT, max_tokens=200).content


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_forced_calls_fit_the_tools(model, thinking, seed):
    chat = model.chat(
        sampling=Sampling(temperature=1.0), tools=[book, other], thinking=thinking, seed=seed, max_thinking_tokens=12
    )
    answer = chat.ask("Hello!", tool_choice="required", parallel_tool_calls=False, max_tokens=400)
    assert answer.finish_reason in ("tool_calls", "length")
    if answer.finish_reason == "tool_calls":
        (call,) = answer.tool_calls
        assert call.name in ("book", "other")
        if call.name == "book":
            assert isinstance(call.arguments["title"], str)
            assert isinstance(call.arguments["pages"], int)
            assert isinstance(call.arguments.get("ratio"), (int, float, type(None)))
            assert isinstance(call.arguments.get("flag", False), bool)
    assert answer.content == ""


def test_named_tool(model):
    chat = model.chat(sampling=Sampling.greedy(), tools=[book, other], thinking=False)
    choice = {"type": "function", "function": {"name": "other"}}
    answer = chat.ask("Hello!", tool_choice=choice, parallel_tool_calls=False, max_tokens=200)
    assert {call.name for call in answer.tool_calls} <= {"other"}
    assert answer.finish_reason == "tool_calls"


def test_no_call_where_none_may_come(model):
    def throw_dice(faces: int) -> int:
        """Throw a die with some sides.

        Args:
            faces: Number of sides
        """
        return 4

    chat = model.chat(sampling=Sampling.greedy(), tools=[throw_dice])
    assert chat.ask("Throw a die with 6 sides").finish_reason == "tool_calls"
    chat.reset()
    answer = chat.ask("Throw a die with 6 sides", tool_choice="none", max_tokens=60)
    assert answer.tool_calls == ()
    assert answer.finish_reason in ("stop", "length")
    assert "<tool_call>" not in answer.content


def test_answer_or_calls(model):
    chat = model.chat(sampling=Sampling.greedy(), tools=[other], thinking=False)
    answer = chat.ask("Tell me of Anna.", response_format=FORMAT, max_tokens=200)
    if answer.tool_calls:
        assert answer.content == ""
    else:
        check_person(answer.content)


# -- grammars without a model --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compiler(model):
    return GrammarCompiler(model.tokenizer, model.stop_tokens)


def accepts(compiler, tokenizer, grammar, text):
    constraint = compiler.start(grammar)
    for token in [*tokenizer.encode(text), tokenizer.token_id("<|im_end|>")]:
        mask = constraint.mask()
        if not mask[token // 32] >> (token % 32) & 1:
            return False
        constraint.accept(token)
    return True


CALL_SCHEMA = {
    "type": "object",
    "properties": {
        "s": {"type": "string"},
        "n": {"type": "integer"},
        "e": {"enum": ["x y", 3, None]},
        "o": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
        "a": {"type": "array", "items": {"$ref": "#/$defs/k"}},
    },
    "required": ["s"],
    "$defs": {"k": {"type": "number", "maximum": 5}},
}


@pytest.mark.parametrize(
    ("parameters", "fits"),
    [
        ({"s": "any <b> text\n\n with lines"}, True),
        ({"s": ""}, True),
        ({}, False),
        ({"s": "a", "n": "12"}, True),
        ({"s": "a", "n": "twelve"}, False),
        ({"s": "a", "n": "012"}, False),
        ({"s": "a", "e": "x y"}, True),
        ({"s": "a", "e": "null"}, True),
        ({"s": "a", "e": "z"}, False),
        ({"s": "a", "o": "true"}, True),
        ({"s": "a", "o": "1"}, False),
        ({"s": "a", "a": "[1, 2.5]"}, True),
        ({"s": "a", "a": "[9]"}, False),
        ({"s": "a", "unknown": "1"}, False),
    ],
)
def test_grammar_of_calls(compiler, tokenizer, parameters, fits):
    schemas = ToolSchemas([{"name": "f-1", "parameters": CALL_SCHEMA}, {"name": "g"}])
    tags = {"open_tag": tokenizer.token_id("<tool_call>"), "close_tag": tokenizer.token_id("</tool_call>")}
    body = "".join(f"<parameter={name}>\n{value}\n</parameter>\n" for name, value in parameters.items())
    text = f"<tool_call>\n<function=f-1>\n{body}</function>\n</tool_call>"
    grammar = call_grammar(schemas, ("f-1", "g"), **tags)
    assert accepts(compiler, tokenizer, grammar, text) is fits
    plain = "<tool_call>\n<function=g>\n</function>\n</tool_call>"
    assert accepts(compiler, tokenizer, grammar, plain)
    assert accepts(compiler, tokenizer, grammar, f"{plain}\n{text}") is fits
    assert not accepts(compiler, tokenizer, call_grammar(schemas, ("g",), **tags), text)
    assert not accepts(compiler, tokenizer, call_grammar(schemas, ("g",), parallel=False, **tags), f"{plain}\n{plain}")


COLOR = {"enum": ["red", "green"], "type": "string"}


@pytest.mark.parametrize(
    ("schema", "value", "fits"),
    [
        ({"$ref": "#/$defs/color"}, "red", True),
        ({"$ref": "#/$defs/color"}, '"red"', False),
        ({"$ref": "#/$defs/again"}, "green", True),
        ({"anyOf": [{"$ref": "#/$defs/color"}, {"type": "null"}]}, "green", True),
        ({"anyOf": [{"$ref": "#/$defs/color"}, {"type": "null"}]}, "null", True),
        ({"allOf": [{"$ref": "#/$defs/color"}], "default": "red"}, "red", True),
        ({"allOf": [{"$ref": "#/$defs/color"}]}, "blue", False),
        ({"$ref": "#/$defs/node"}, '{"next": {"next": null}}', True),
        ({"$ref": "#/$defs/node"}, '{"next": 1}', False),
        ({"$ref": "#/$defs/nothing"}, "any text", True),
        ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, "[1, 2]", True),
        ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, "[1, true]", False),
        ({"type": "object", "not": {"required": ["a"]}}, '{"b": 1}', True),
    ],
)
def test_values_behind_references_and_keywords_without_a_grammar(compiler, tokenizer, schema, value, fits):
    node = {
        "type": "object",
        "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
        "additionalProperties": False,
    }
    definitions = {"color": COLOR, "again": {"$ref": "#/$defs/color"}, "node": node}
    parameters = {"type": "object", "$defs": definitions, "properties": {"x": schema}, "required": ["x"]}
    schemas = ToolSchemas([{"name": "f", "parameters": parameters}])
    tags = {"open_tag": tokenizer.token_id("<tool_call>"), "close_tag": tokenizer.token_id("</tool_call>")}
    text = f"<tool_call>\n<function=f>\n<parameter=x>\n{value}\n</parameter>\n</function>\n</tool_call>"
    assert accepts(compiler, tokenizer, call_grammar(schemas, ("f",), **tags), text) is fits


@pytest.mark.parametrize("name", ["<x>", "a\nb", '"x"', " x", "", "<|im_end|>", "x" * 201])
def test_parameters_that_no_call_can_hold(tokenizer, name):
    tags = {"open_tag": tokenizer.token_id("<tool_call>"), "close_tag": tokenizer.token_id("</tool_call>")}
    parameters = {"type": "object", "properties": {name: {"type": "integer"}, "y": {"type": "integer"}}}
    grammar = call_grammar(ToolSchemas([{"name": "f", "parameters": parameters}]), ("f",), **tags)
    assert grammar.count("<parameter=") == 1
    needed = ToolSchemas([{"name": "f", "parameters": {**parameters, "required": [name]}}])
    with pytest.raises(InvalidArgumentError, match="tools: f needs"):
        call_grammar(needed, ("f",), **tags)


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ('{"name": "A", "age": 3}', True),
        ('{\n  "name": "A",\n  "age": 3\n}', True),
        ('{"name":"A","age":3}', True),
        ('{"age": 3}', False),
        ('{"name": "A", "age": 121}', False),
        ('{"name": "A", "age": 3, "more": 1}', False),
        ('{"name": "A", "age": 3}  x', False),
        ('{"name": "<tool_call>", "age": 3}', False),
        ("{" + " " * 60 + '"name": "A", "age": 3}', False),
    ],
)
def test_grammar_of_a_schema(compiler, tokenizer, text, fits):
    assert accepts(compiler, tokenizer, answer_grammar(FORMAT), text) is fits


def test_slashes_in_regular_expressions(compiler, tokenizer):
    grammar = answer_grammar({"type": "regex", "regex": r"a/b\/c[/]d"})
    assert accepts(compiler, tokenizer, grammar, "a/b/c/d")
    assert not accepts(compiler, tokenizer, grammar, "a/b/cd")


@pytest.mark.parametrize(
    ("response_format", "reason"),
    [
        ({"type": "xml"}, "response_format.type"),
        ({}, "response_format.type"),
        ("json", "response_format must be a mapping"),
        ({"type": "json_schema"}, "json_schema.schema"),
        ({"type": "regex", "regex": ""}, "response_format.regex"),
        ({"type": "grammar", "grammar": 3}, "response_format.grammar"),
        ({"type": "json_schema", "schema": {"type": {1, 2}}}, "not JSON"),
    ],
)
def test_wrong_formats_are_named(response_format, reason):
    with pytest.raises(InvalidArgumentError, match=reason):
        answer_grammar(response_format)


@pytest.mark.parametrize(
    "response_format",
    [
        {"type": "json_schema", "schema": {"type": "objekt"}},
        {"type": "json_schema", "schema": {"type": "string", "minLength": "a"}},
        {"type": "json_schema", "schema": {"$ref": "file:///etc/passwd"}},
        {"type": "regex", "regex": "(("},
        {"type": "regex", "regex": "\ud800"},
        {"type": "grammar", "grammar": "start: missing"},
    ],
)
def test_grammars_that_do_not_compile_are_refused_before_anything_is_computed(model, response_format):
    chat = model.chat()
    with pytest.raises(InvalidArgumentError, match="response_format: the grammar is not valid") as refused:
        chat.ask("x", response_format=response_format)
    assert "x-guidance" not in str(refused.value)  # what the caller did not write
    assert chat.session is None


def test_grammars_are_compiled_once(model, monkeypatch):
    compiler = GrammarCompiler(model.tokenizer, model.stop_tokens)
    compiled = []
    compile_ = compiler._compile
    monkeypatch.setattr(compiler, "_compile", lambda grammar: compiled.append(grammar) or compile_(grammar))
    first, second = compiler.start('start: "ab"'), compiler.start('start: "ab"')
    assert len(compiled) == 1
    first.accept(model.tokenizer.encode("ab")[0])
    assert second.mask().any()
    compiler.start('start: "b"')
    assert len(compiled) == 2


def test_missing_extra_is_named(model, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "llguidance", None)
    with pytest.raises(MissingExtraError, match=r"lily-engine\[structured\]"):
        GrammarCompiler(model.tokenizer, model.stop_tokens).start('start: "a"')


@pytest.mark.parametrize("size", [1, 31, 32, 33, 100])
def test_forbid(size):
    mask = forbid(size, [0, size - 1])
    allowed = [bool(mask[token // 32] >> (token % 32) & 1) for token in range(size)]
    assert allowed == [token not in (0, size - 1) for token in range(size)]
