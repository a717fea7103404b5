"""The cache of compiled grammars: bounded by bytes, free of failures, shared between answers."""

import gc
import logging
import subprocess
import sys
import textwrap

import pytest

from lily.chat.constraints import CompiledGrammar, GrammarCompiler
from lily.chat.grammar_cache import BUDGET_BYTES, GrammarCache
from lily.chat.grammars import answer_grammar
from lily.errors import InvalidArgumentError

pytest.importorskip("llguidance")


class Table(CompiledGrammar):
    """A compiled grammar of a given size."""

    def __init__(self, size):
        super().__init__(None, 1, 0, ())
        self.size = size

    @property
    def estimated_bytes(self):
        return self.size


def test_cache_is_bounded_by_bytes_and_drops_what_was_used_longest_ago():
    cache = GrammarCache(budget=1_000_000)
    for name in "abc":
        cache.put(name, Table(300_000))
    assert cache.get("a") is not None
    cache.put("d", Table(300_000))
    assert [name for name in "abcd" if cache.get(name) is not None] == ["a", "c", "d"]
    assert cache.total_bytes <= 1_000_000


def test_small_grammars_have_a_size_too():
    cache = GrammarCache(budget=100_000)
    for at in range(1000):
        cache.put(f"g{at}", Table(0))
    assert len(cache) < 30


def test_grammar_beyond_the_budget_is_not_kept_and_drops_no_others():
    cache = GrammarCache(budget=1_000_000)
    cache.put("small", Table(10_000))
    cache.put("large", Table(2_000_000))
    assert cache.get("large") is None
    assert cache.get("small") is not None


def test_grammars_that_grow_are_counted_again():
    cache = GrammarCache(budget=1_000_000)
    tables = {name: Table(300_000) for name in "abc"}
    for name, table in tables.items():
        cache.put(name, table)
    tables["c"].size = 600_000
    assert cache.total_bytes <= 1_000_000
    assert cache.get("a") is None
    assert cache.get("c") is not None


def test_spoiled_grammars_are_given_up():
    cache = GrammarCache()
    table = Table(1000)
    cache.put("a", table)
    table.spoil()
    assert cache.get("a") is None
    assert cache.total_bytes == 0


def test_slow_steps_count_as_memory():
    grammar = CompiledGrammar(None, 1, 100, ())
    before = grammar.estimated_bytes
    grammar.note_work(0.001)
    assert grammar.estimated_bytes == before > 0
    grammar.note_work(1.0)
    assert grammar.estimated_bytes > before + 100_000_000


def test_errors_are_not_kept(model):
    compiler = GrammarCompiler(model.tokenizer, model.stop_tokens)
    for grammar in ("start: missing", "start: start", "start: /((/", "start: /((a{1000}){1000}){1000}/"):
        with pytest.raises(InvalidArgumentError):
            compiler.start(grammar)
        assert compiler.cached_bytes == 0


def test_answers_share_a_compiled_grammar(model):
    compiler = GrammarCompiler(model.tokenizer, model.stop_tokens)
    assert compiler.compile('start: "ab"') is compiler.compile('start: "ab"')


DEAD_END = "[x-z]{60}((a{1000}){1000}){1000}"  # begins well


def test_grammar_that_leads_nowhere_ends_the_turn_with_an_error_and_one_line(model, caplog):
    chat = model.chat(thinking=False)
    with caplog.at_level(logging.DEBUG), pytest.raises(InvalidArgumentError) as refused:
        chat.ask("Hello", response_format={"type": "regex", "regex": DEAD_END})
    assert "response_format: the grammar cannot continue after" in str(refused.value)
    assert len(str(refused.value)) < 600
    lines = [record for record in caplog.records if "cannot continue" in record.getMessage()]
    assert len(lines) == 1
    assert lines[0].exc_info is None
    assert "\n" not in lines[0].getMessage()
    assert [message["role"] for message in chat.messages] == ["user", "assistant"]
    chat.reset()
    assert chat.ask("Hello", max_tokens=5).finish_reason in ("stop", "length")


def test_grammar_that_led_nowhere_is_not_kept(model):
    compiler = GrammarCompiler(model.tokenizer, model.stop_tokens)
    constraint = compiler.start(f"start: /{DEAD_END}/")
    assert compiler.cached_bytes > 0
    with pytest.raises(InvalidArgumentError, match="cannot continue after"):
        for _ in range(70):
            constraint.mask()
            constraint.accept(model.tokenizer.encode("x")[0])
    assert compiler.cached_bytes == 0


def test_what_is_left_out_is_logged_once(model, caplog):
    compiler = GrammarCompiler(model.tokenizer, model.stop_tokens)
    schema = {"properties": {f"k{at}": {"type": "array", "uniqueItems": True} for at in range(100)}}
    grammar = answer_grammar({"type": "json_schema", "schema": schema})
    for _ in range(5):
        compiler.start(grammar)
    lines = [record.getMessage() for record in caplog.records if record.name == "lily"]
    assert len(lines) == 1
    assert len(lines[0]) < 400


ATTACK = """
    import lily
    from lily.chat.constraints import GrammarCompiler
    from lily.chat.grammars import answer_grammar
    from lily.errors import InvalidArgumentError

    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    def attacks(at):
        yield {"type": "regex", "regex": "((a{1000}){1000}){%d}" % (1000 + at)}
        yield {"type": "regex", "regex": "ab" * (9_000 + at)}
        schemas = [
            {"enum": [f"{at} {one * 7919 % 1_000_003}" for one in range(9_000)]},
            {"type": "object", "properties": {f"k{at}_{one}": {"type": "integer"} for one in range(1_900)}},
            {"type": "object", "properties": {f"k{at}_{one}": {} for one in range(70)},
             "anyOf": [{"required": [f"k{at}_{one}"]} for one in range(70)]},
        ]
        yield from ({"type": "json_schema", "schema": schema} for schema in schemas)

    model = lily.Model.load("lily-tiny", threads=1)
    compiler = GrammarCompiler(model.tokenizer, model.stop_tokens)
    compiler.start('start: "a"')
    before = resident()
    for at in range(5):
        for response_format in attacks(at):
            try:
                compiler.start(answer_grammar(response_format)).mask()
            except InvalidArgumentError:
                pass
    print(resident() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the resident memory from /proc")
def test_small_requests_do_not_pin_memory():
    gc.collect()
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(ATTACK)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    assert int(run.stdout) < BUDGET_BYTES + 200_000_000
