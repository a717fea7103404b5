"""Schemas made to keep an engine busy: the work is bounded by their size, and what is too much is refused."""

import contextlib
import sys
import threading

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from lily.chat.argument_values import ToolSchemas, convert, is_text
from lily.chat.constraints import GrammarCompiler
from lily.chat.control import turn_grammar
from lily.chat.grammars import answer_grammar, call_grammar
from lily.chat.options import TurnOptions
from lily.chat.schema_limits import MAX_LEVELS, MAX_VALUES, check_json
from lily.chat.tool_choice import as_tool_choice
from lily.errors import CancelledError, InvalidArgumentError, LilyError

pytest.importorskip("llguidance")

REFERENCES = ("anyOf", "oneOf", "allOf", "prefixItems")


def answer(schema):
    return {"type": "json_schema", "schema": schema}


def listing_itself(keyword, count=20):
    return {"$ref": "#/$defs/e", "$defs": {"e": {keyword: [{"$ref": "#/$defs/e"}] * count}}}


def diamonds(keyword, levels=40):
    definitions = {f"d{at}": {keyword: [{"$ref": f"#/$defs/d{at + 1}"}] * 2} for at in range(levels)}
    definitions[f"d{levels}"] = {"type": "object", "properties": {"a": {"type": "integer"}}}
    return {"$ref": "#/$defs/d0", "$defs": definitions}


def shared_diamonds(levels=60):
    """Mappings that share their parts, as only a caller in Python can make them."""
    schema = {"type": "integer"}
    for _ in range(levels):
        schema = {"anyOf": [schema, schema]}
    return schema


def chain(wrap, length, end=None):
    definitions = {f"d{at}": wrap({"$ref": f"#/$defs/d{at + 1}"}) for at in range(length)}
    definitions[f"d{length}"] = {"type": "integer"} if end is None else end
    return {"$ref": "#/$defs/d0", "$defs": definitions}


def products(factors, options):
    """Demands that hold at the same time, each with several alternatives."""
    definitions = {
        f"d{at}": {
            "anyOf": [{"type": "object", "properties": {f"p{at}_{one}": {"type": "string"}}} for one in range(options)]
        }
        for at in range(factors)
    }
    return {"allOf": [{"$ref": f"#/$defs/{name}"} for name in definitions], "$defs": definitions}


@pytest.fixture(scope="module")
def compiler(model):
    return GrammarCompiler(model.tokenizer, model.stop_tokens)


class WorkCounter(dict):
    """A schema that counts how often it is looked into."""

    lookups = 0

    def get(self, *arguments):
        WorkCounter.lookups += 1
        return super().get(*arguments)

    def __getitem__(self, key):
        WorkCounter.lookups += 1
        return super().__getitem__(key)

    def items(self):
        WorkCounter.lookups += len(self)
        return super().items()


def counting(value):
    if isinstance(value, dict):
        return WorkCounter({key: counting(item) for key, item in value.items()})
    return [counting(item) for item in value] if isinstance(value, list) else value


def size_of(value):
    if isinstance(value, dict):
        return 1 + sum(size_of(item) for item in value.values())
    return 1 + sum(map(size_of, value)) if isinstance(value, list) else 1


def lookups_of(work):
    WorkCounter.lookups = 0
    work()
    return WorkCounter.lookups


def forced_calls(schema):
    """The grammar of forced calls of a tool with one parameter."""
    definitions = schema.get("$defs", {})
    parameters = {"type": "object", "$defs": definitions, "properties": {"x": schema}, "required": ["x"]}
    schemas = ToolSchemas([{"name": "f", "parameters": parameters}])
    return call_grammar(schemas, ("f",), open_tag=1, close_tag=2)


# -- work ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keyword", REFERENCES)
@pytest.mark.parametrize("make", [listing_itself, diamonds])
def test_references_cost_their_number_not_their_ways(keyword, make):
    schema = counting(make(keyword))
    bound = 40 * size_of(schema)
    root = {"$defs": schema["$defs"]}
    assert lookups_of(lambda: convert("7", schema, root)) < bound
    assert lookups_of(lambda: is_text(schema, root)) < bound
    assert lookups_of(lambda: forced_calls(schema)) < bound
    assert lookups_of(lambda: answer_grammar(answer(schema))) < bound


@st.composite
def schema_graphs(draw):
    """Definitions that refer to each other and to themselves in all ways."""
    names = [f"d{at}" for at in range(draw(st.integers(1, 6)))]
    pointer = st.sampled_from(["#", *(f"#/$defs/{name}" for name in names), "#/$defs/none", "#anchor"])
    leaf = st.one_of(
        pointer.map(lambda target: {"$ref": target}),
        st.sampled_from(["integer", "string", "null", "object", "int", "any"]).map(lambda kind: {"type": kind}),
        st.sampled_from([True, {}, {"enum": ["a", 1, None]}, {"const": {"a": []}}, {"$anchor": "anchor"}]),
    )

    def extend(inner):
        several = st.lists(inner, min_size=1, max_size=5)
        by_name = st.dictionaries(st.sampled_from(["a", "b", "c"]), inner, max_size=3)
        keywords = {
            **dict.fromkeys(["anyOf", "oneOf", "allOf", "prefixItems"], several),
            **dict.fromkeys(["items", "additionalProperties", "not", "if", "then", "contains"], inner),
            **dict.fromkeys(["properties", "patternProperties"], by_name),
            "$ref": pointer,
            "type": st.sampled_from(["object", "array", ["integer", "null"]]),
            "required": st.just(["a", "z"]),
        }
        return st.fixed_dictionaries({}, optional=keywords)

    schemas = st.recursive(leaf, extend, max_leaves=12)
    root = draw(schemas)
    return {**(root if isinstance(root, dict) else {}), "$defs": {name: draw(schemas) for name in names}}


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(schema_graphs(), st.sampled_from(["7", "null", '{"a": [1]}', "[[]]", "text"]))
def test_any_graph_of_schemas_ends(compiler, schema, text):
    counted = counting(schema)
    bound = 60 * size_of(schema) + 200
    assert lookups_of(lambda: convert(text, counted, counted)) < bound
    assert lookups_of(lambda: forced_calls(counted)) < bound

    def whole():
        try:
            return answer_grammar(answer(counted))
        except InvalidArgumentError:
            return None

    grammars = []
    assert lookups_of(lambda: grammars.append(whole())) < bound
    compiler.compile(forced_calls(schema))
    if grammars[0] is not None:
        try:
            compiler.compile(grammars[0])
        except InvalidArgumentError as error:
            assert "not valid" in str(error)


def test_parts_that_python_objects_share_are_counted_each_time():
    with pytest.raises(InvalidArgumentError, match=r"nested too deeply|too large"):
        check_json(shared_diamonds(levels=MAX_LEVELS), "it")
    with pytest.raises(InvalidArgumentError, match="response_format: the JSON schema is too large"):
        answer_grammar(answer(shared_diamonds()))
    assert convert("7", shared_diamonds()) == 7


@pytest.mark.parametrize(
    ("schema", "dropped"),
    [
        (products(2, 2), False),
        (products(6, 6), True),
        (products(30, 2), True),
        ({"type": "object", "properties": {f"p{at}": {} for at in range(5)}, "anyOf": [{"required": ["p1"]}]}, False),
        (
            {
                "type": "object",
                "properties": {f"p{at}": {} for at in range(300)},
                "anyOf": [{"required": [f"p{at}"]} for at in range(300)],
            },
            True,
        ),
        ({"allOf": [{"type": "string", "pattern": f"^.*a.{{{at}}}b.*$"} for at in range(20)]}, True),
    ],
)
def test_demands_at_the_same_time_are_multiplied_out_to_a_bound(compiler, schema, dropped):
    grammar = answer_grammar(answer(schema))
    assert bool(grammar.dropped) is dropped
    assert compiler.start(grammar).mask().any()


# -- what would end the process --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "schema",
    [
        chain(lambda inner: inner, 20_000),
        chain(lambda inner: {"anyOf": [inner, {"type": "null"}]}, 3_000),
        chain(lambda inner: {"type": "object", "properties": {"a": inner}}, 4_900),
        chain(lambda inner: {"allOf": [{"type": "object"}, {"properties": {"a": inner}}]}, 1_900),
        {"type": "object", "required": [f"k{at}" for at in range(50_000)]},
        {"type": "object", "properties": {f"k{at}": {} for at in range(9_000)}},
        {"type": "array", "prefixItems": [{"type": "integer"}] * 9_000},
    ],
    ids=["references", "alternatives", "properties", "combinations", "required", "names", "items"],
)
def test_long_chains_do_not_overflow_the_stack(compiler, schema):
    compiler.start(answer_grammar(answer(schema)))


@pytest.mark.parametrize("rule", ["a{}:a{}", "A{}:A{}", 'a{}:"b" a{} "c"'])
def test_long_chains_of_rules_do_not_overflow_the_stack(compiler, rule):
    first = rule[0]
    lines = [f"start: {first}0"]
    while sum(map(len, lines)) + 2 * len(lines) < 49_000:
        lines.append(rule.format(len(lines) - 1, len(lines)))
    compiler.start(answer_grammar({"type": "grammar", "grammar": "\n".join([*lines, f'{first}{len(lines) - 1}: "x"'])}))


# -- limits ----------------------------------------------------------------------------------------------------------


def nested(levels):
    schema = {}
    for _ in range(levels - 1):
        schema = {"items": schema}
    return schema


def test_levels_of_a_schema_are_bounded(compiler):
    assert compiler.start(answer_grammar(answer(nested(MAX_LEVELS)))).mask().any()
    for levels in (MAX_LEVELS + 1, 5_000, 100_000):
        with pytest.raises(InvalidArgumentError, match=f"nested too deeply: more than {MAX_LEVELS} levels"):
            answer_grammar(answer(nested(levels)))


@pytest.mark.parametrize("levels", [MAX_LEVELS + 1, 5_000, 100_000])
def test_tools_that_are_nested_too_deeply_are_refused(model, levels):
    tool = {"name": "f", "parameters": {"properties": {"x": nested(levels)}}}
    with pytest.raises(InvalidArgumentError, match=r"tools\[0\] is nested too deeply"):
        model.chat(tools=[tool])


def test_deep_arguments_in_a_conversation_are_taken_as_they_are(model):
    arguments = {"x": nested(200)}
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "b"},
    ]
    assert model.chat(messages=messages, max_tokens=2).ask("c").done.usage.completion_tokens == 2
    call["function"]["arguments"] = {"x": nested(5_000)}
    with contextlib.suppress(LilyError):  # more than the context, or than Python's stack, holds
        model.chat(messages=messages, max_tokens=2).ask("c")


@pytest.mark.parametrize("levels", [1, MAX_LEVELS, MAX_LEVELS + 1, 900, 100_000])
def test_levels_of_a_value_are_bounded(levels):
    text = "[" * levels + "]" * levels
    value = convert(text, {"type": "array"})
    assert (value != text) is (levels <= MAX_LEVELS)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({1: 2}, "a key is of type int"),
        ([{1, 2}], "it contains a set"),
        ([float("nan")], "it contains nan"),
        ([10**5000], "too many digits"),
        ([0] * (MAX_VALUES + 1), "too large"),
        ([[0] * 400] * 400, "too large"),
    ],
)
def test_what_is_no_json_is_refused(value, reason):
    with pytest.raises(InvalidArgumentError, match=f"^it .*{reason}"):
        check_json(value, "it")


@pytest.mark.parametrize(
    "response_format",
    [
        {"type": "regex", "regex": "a" * 20_001},
        {"type": "grammar", "grammar": "start: " + '"a" ' * 20_000},
    ],
)
def test_long_texts_are_refused_before_they_are_compiled(response_format):
    with pytest.raises(InvalidArgumentError, match=r"response_format\.\w+ is too long"):
        answer_grammar(response_format)


@pytest.mark.parametrize(
    ("schema", "dropped"),
    [
        ({"type": "string", "maxLength": 10**9}, "maxLength"),
        ({"type": "array", "minItems": 10**30}, "minItems"),
        ({"type": "integer", "multipleOf": 1_000_003}, "multipleOf"),
        ({"type": "integer", "allOf": [{"multipleOf": prime} for prime in (97, 101, 103)]}, "multipleOf"),
        ({"type": "number", "multipleOf": 1e-300}, "multipleOf"),
        ({"type": "number", "minimum": -1.2e300, "maximum": 1.2e300}, "maximum"),
        ({"patternProperties": {f"^k{at}[a-z]+": {} for at in range(400)}}, "patternProperties"),
        ({"type": "string", "pattern": "a" * 6_000}, "pattern"),
        ({"type": "object", "required": [f"k{at}" for at in range(3_000)]}, "required"),
        ({"type": "object", "properties": {f"k{at}": {} for at in range(3_000)}}, "properties"),
        ({"type": "object", "properties": {"x" * 1_000_000: {}}, "required": ["x" * 1_000_000]}, "properties"),
        ({"properties": {f"{'x' * 1_000}{at}": {} for at in range(1_900)}}, "properties"),
        ({"const": "x" * 1_000_000}, "const"),
        ({"enum": [f"{at}{'xy' * 50_000}" for at in range(5)]}, "enum"),
        ({"enum": [f"value {at}" for at in range(90_000)]}, "enum"),
        ({"enum": [[at] for at in range(30_000)]}, "enum"),
        ({"enum": [f"v{at}" for at in range(5_000)], "pattern": "^v.*$"}, "pattern"),
        ({"properties": {f"k{at}": {"minimum": at * 1.37e5, "maximum": at * 9.77e7} for at in range(900)}}, "minimum"),
        ({"properties": {f"k{at}": {"format": "email", "maxLength": at + 9} for at in range(900)}}, "format"),
    ],
)
def test_keywords_beyond_a_grammar_are_left_out(compiler, schema, dropped):
    grammar = answer_grammar(answer(schema))
    assert any(keyword.startswith(dropped) for keyword in grammar.dropped)
    assert compiler.start(grammar).mask().any()


def test_list_of_what_is_left_out_is_short():
    schema = {"properties": {f"k{at}": {"type": "array", "uniqueItems": True} for at in range(300)}}
    dropped = answer_grammar(answer(schema)).dropped
    assert len(dropped) == 21
    assert dropped[-1] == "and 280 more"


@pytest.mark.parametrize(
    "response_format",
    [
        {"type": "grammar", "grammar": "start: start"},
        {"type": "regex", "regex": "((a{1000}){1000}){1000}"},
        answer({"type": "string", "pattern": "^((a{1000}){1000}){1000}$"}),
        answer({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}}),
        answer({"$ref": "#"}),
        answer({"allOf": [{"type": "string"}, {"type": "integer"}]}),
    ],
)
def test_grammars_that_fit_no_text_are_refused_at_once(model, response_format):
    with pytest.raises(InvalidArgumentError, match="response_format: the grammar is not valid") as refused:
        model.chat().ask("x", response_format=response_format)
    assert len(str(refused.value)) < 500


# -- cancelling ------------------------------------------------------------------------------------------------------


def test_compiling_can_be_cancelled(model, monkeypatch):
    compiler = GrammarCompiler(model.tokenizer, model.stop_tokens)
    go_on, asked = threading.Event(), threading.Event()
    compile_really = compiler._compile

    def compile_slowly(grammar):
        go_on.wait(60)
        return compile_really(grammar)

    monkeypatch.setattr(compiler, "_compile", compile_slowly)
    with pytest.raises(CancelledError):
        compiler.compile('start: "a"', lambda: True)

    def is_cancelled():
        asked.set()
        return True

    with pytest.raises(CancelledError):  # the first one is still at work: no second one begins
        compiler.compile('start: "b"', is_cancelled)
    assert asked.is_set()
    go_on.set()
    assert compiler.compile('start: "b"').start().mask().any()


def test_turn_that_is_cancelled_while_its_grammar_is_compiled_ends(model, monkeypatch):
    chat = model.chat(tools=[{"name": "f", "parameters": {}}])

    def cancel_and_compile(grammar, is_cancelled):
        chat.cancel()
        assert is_cancelled()
        raise CancelledError("cancelled")

    monkeypatch.setattr(model.chat_support.grammars, "compile", cancel_and_compile)
    assert chat.ask("x", tool_choice="required").finish_reason == "cancelled"
    assert chat.messages == []


def test_recursion_limit_of_the_caller_does_not_matter(model):
    """Schemas at the limit are read where most of Python's stack is in use."""
    schema = answer({"properties": {"a": nested(MAX_LEVELS - 3)}})
    options = TurnOptions(response_format=schema)

    def deeper(levels):
        if levels:
            return deeper(levels - 1)
        return turn_grammar(model.tokenizer, options, ToolSchemas([]), as_tool_choice(None, ()))

    assert deeper(sys.getrecursionlimit() - 600)
