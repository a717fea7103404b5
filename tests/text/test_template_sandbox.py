"""Tests of the environment of chat templates: its filters and functions, the sandbox and its bounds."""

import datetime
import json

import pytest

from lily.errors import TemplateError
from lily.text import ChatTemplate, chat_template, template_budget, template_guards

BIG = "{% set s = 'x' * 999999 %}"
GROW = "{%% set ns = namespace(s=['x']) %%}{%% for i in range(60) %%}{%% set ns.s = %s %%}{%% endfor %%}"
MACRO = "{{% macro f() %}}{{% endmacro %}}{{% for i in range({}) %}}{{{{ f() }}}}{{% endfor %}}"
HI = [{"role": "user", "content": "Hi"}]


def render(source, **variables):
    return ChatTemplate(source).render(HI, **variables)


def test_tojson_is_plain_json():
    value = {"z": "<a href='x'>&č☃</a>", "a": [1, 1.5, None, True, {"k": "v\n\u2028"}], "1": {}}
    assert render("{{ value | tojson }}", value=value) == json.dumps(value, ensure_ascii=False)
    assert render("{{ value | tojson(indent=2) }}", value=value) == json.dumps(value, ensure_ascii=False, indent=2)
    assert render("{{ {'b': 1, 'a': 'é'} | tojson }}") == '{"b": 1, "a": "é"}'
    assert render("{{ 'é' | tojson(ensure_ascii=true) }}") == '"\\u00e9"'


def test_blocks_are_trimmed():
    source = "A\n  {% if true %}\nB\n    {% endif %}\nC"
    assert render(source) == "A\nB\nC"


def test_loop_controls():
    body = "{% if i == 1 %}{% continue %}{% elif i == 4 %}{% break %}{% endif %}{{ i }}"
    assert render("{% for i in range(9) %}" + body + "{% endfor %}") == "023"


def test_nothing_is_escaped_in_output():
    assert render("{{ '<b>' }}{{ x }}{{ y | safe }}", x="<i>&", y="<u>") == "<b><i>&<u>"


def test_strftime_now():
    before = datetime.datetime.now().strftime("%Y-%m-%d")
    text = render("{{ strftime_now('%Y-%m-%d') }}")
    assert text in (before, datetime.datetime.now().strftime("%Y-%m-%d"))


def test_raise_exception_reaches_the_caller():
    with pytest.raises(TemplateError, match=r"^the chat template refuses the messages: no <way>$"):
        render("{{ raise_exception('no <way>') }}")


def test_undefined_is_empty_but_its_attributes_are_errors():
    assert render("[{{ nothing }}]{% if nothing %}x{% endif %}") == "[]"
    with pytest.raises(TemplateError, match="UndefinedError"):
        render("{{ nothing.at_all }}")


@pytest.mark.parametrize("source", ["{% if %}", "{{ x", "{% for a in b %}", "{{ x | no_filter }}", "{% include 3"])
def test_syntax_errors_name_the_line(source):
    with pytest.raises(TemplateError, match="my template, line 2: "):
        ChatTemplate("\n" + source, origin="my template")


def test_deep_nesting_is_an_error():
    with pytest.raises(TemplateError):
        render("{{ " + "(" * 20_000 + "1" + ")" * 20_000 + " }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__ }}",
        "{{ ''['__class__'] }}",
        "{{ messages.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages | attr('__class__') }}",
        "{{ messages | map(attribute='__class__') | list }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__globals__['datetime'] }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ self.__init__.__globals__ }}",
        "{{ '{0.__class__}'.format(messages) }}",
        "{{ '{x.__class__}'.format_map({'x': 1}) }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{{ messages.clear() }}",
        "{% include 'passwd' %}",
        "{% import 'os' as os %}",
        "{{ ().__class__.__bases__ }}",
        "{% for a in messages %}{{ loop.__init__.__globals__ }}{% endfor %}",
    ],
)
def test_leaving_the_sandbox_is_an_error(source):
    with pytest.raises(TemplateError):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(100000000000) %}{% endfor %}",
        "{% for i in range(10**60) %}{% endfor %}",
        "{% for i in range(5, -100000000000, -1) %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro m(n) %}{% for i in range(9999) %}{{ m(n) }}{% endfor %}{% endmacro %}{{ m(1) }}",
        "{{ 'x' * 10000000000 }}",
        "{{ 10000000000 * [1] }}",
        "{{ 9 ** 99999999 }}",
        "{% for i in range(900) %}{{ 'x' * 999999 }}{% endfor %}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% for i in [1] recursive %}{{ loop([1, 1]) }}{% endfor %}",
        BIG + "{% for a in s %}{% for b in s %}{% endfor %}{% endfor %}",
        BIG + "{% for a in s %}{% for b in s if false %}{% endfor %}{% endfor %}",
        GROW % "ns.s ~ ns.s",
        GROW % "ns.s + ns.s",
        GROW % "[ns.s, ns.s]" + "{{ ns.s }}",
        GROW % "[ns.s, ns.s]" + "{{ ns.s | tojson }}",
        GROW % "[ns.s, ns.s]" + "{{ ns.s | string }}",
        GROW % "[ns.s, ns.s]" + "{{ 'a' ~ ns.s }}",
        GROW % "[ns.s, ns.s]" + "{{ '%s' % ns.s }}",
        GROW % "[ns.s, ns.s]" + "{{ '{}'.format(ns.s) }}",
        "{% set ns = namespace(n=9) %}{% for i in range(60) %}{% set ns.n = ns.n * ns.n %}{% endfor %}",
        "{% set ns = namespace(n=9) %}{% for i in range(60) %}{% set ns.n = ns.n ** 60 %}{% endfor %}",
        "{% set x %}a{% endset %}" + "{% set x %}{{ x }}{{ x }}{% endset %}" * 60,
        "{% set x %}{% for a in range(900000) %}" + "A" * 100_000 + "{% endfor %}{% endset %}",
        BIG + "{% set x %}{% for a in s %}{{ s }}{% endfor %}{% endset %}",
        BIG + "{% filter upper %}{% for a in s %}{{ s }}{% endfor %}{% endfilter %}",
        BIG + "{% for a in s %}{% set t = s | upper %}{% endfor %}",
        BIG + "{% for a in s %}{% set t = s.upper() %}{% endfor %}",
        BIG + "{{ ([s] * 1000000) | join }}",
        BIG + "{{ ([s] * 1000000) | select | join }}",
        BIG + "{{ ''.join([s] * 1000000) }}",
        BIG + "{{ ''.join(([s] * 1000000) | select) }}",
        BIG + "{{ ([s] * 1000000) | map('upper') | list }}",
        BIG + "{{ ([s] * 1000000) | sort }}",
        BIG + "{{ ([{'a': s}] * 1000000) | groupby('a') }}",
        BIG + "{{ s.replace('x', s) }}",
        BIG + "{{ s | replace('x', s) }}",
        BIG + "{{ s.translate({120: s}) }}",
        BIG + "{{ (s | replace('x', '\t')).expandtabs(999999) }}",
        BIG + "{{ s | replace('x', '\n') | indent(999999) }}",
        "{{ 'x' | center(10000000000) }}",
        "{{ 'x'.ljust(10000000000) }}",
        "{{ '%09999999999d' % 1 }}",
        "{{ '%*d' % (10000000000, 1) }}",
        "{{ '{:>9999999999}'.format(1) }}",
        "{{ '{:>{w}}'.format(1, w=10000000000) }}",
        "{{ (1).to_bytes(10000000000, 'big') }}",
        "{{ 1 | round(1000000000) }}",
        "{{ 'x' | batch(1000000000, 'y') | list }}",
        "{{ lipsum(n=1000000) }}",
    ],
)
def test_runaway_templates_are_stopped(source, monkeypatch):
    monkeypatch.setattr(template_budget, "_SECONDS", 0.5)
    with pytest.raises(TemplateError) as caught:
        render(source)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("bound", "value", "source", "within", "words"),
    [
        ("_STEPS", 1000, "{{% for i in range({}) %}}{{% endfor %}}", 900, "more than 1000 steps"),
        ("_STEPS", 1000, MACRO, 450, "more than 1000 steps"),
        (
            "_CHARACTERS",
            50_000,
            "{{% for i in range({}) %}}{{% set x = 'ab' * 1000 %}}{{% endfor %}}",
            20,
            "50000 char",
        ),
        ("OUTPUT_LIMIT", 5000, "{{{{ 'a' * {} }}}}", 4900, "5000 characters"),
        ("REPEAT_LIMIT", 5000, "{{{{ 'a' * {} }}}}", 4900, "more than 5000 items"),
    ],
)
def test_each_bound_holds_without_the_others(monkeypatch, bound, value, source, within, words):
    monkeypatch.setattr(template_budget, "_SECONDS", 1e9)
    for module in (template_budget, template_guards, chat_template):
        if hasattr(module, bound):
            monkeypatch.setattr(module, bound, value)
    render(source.format(within))
    with pytest.raises(TemplateError, match=words):
        render(source.format(2 * within))


def test_a_template_of_any_length_is_refused():
    with pytest.raises(TemplateError, match="exceed the limit for a template"):
        ChatTemplate("x" * 600_000)


def test_ordinary_work_is_no_runaway():
    """Far more than any conversation asks of a template, with everything that is counted."""
    messages = [{"role": "user", "content": "x" * 1000 + str(number)} for number in range(2000)]
    source = (
        "{% macro show(m) %}{{ m.role ~ ': ' + m.content | trim }}{% endmacro %}{% set ns = namespace(n=0) %}"
        "{% for m in messages %}{% set text %}{{ show(m) }}{% endset %}"
        "{% set ns.n = ns.n + text | length %}{{ text }}\n"
        "{% endfor %}{{ ns.n }} {{ '%s of %d' % ('a', 3) }} {{ '{:>4}'.format(7) }} {{ 'a'.ljust(3) }}|"
        "{{ [3, 1] | sort | join(',') }} {{ 'ab' | replace('b', 'cc') | indent(2, true) }} {{ 1234567890123 * 3 }} "
        "{{ ['b', 'a'] | map('upper') | join }} {{ [[1], {'k': 'v'}] }} {{ 2.345 | round(2) }} {{ 'a-' * 3 }}"
    )
    text = ChatTemplate(source).render(messages)
    assert text.startswith("user: " + "x" * 1000 + "0\n")
    total = sum(len(f"user: {m['content']}") for m in messages)
    assert text.endswith(f"\n{total} a of 3    7 a  |1,3   acc 3703703670369 BA [[1], {{'k': 'v'}}] 2.35 a-a-a-"), text[
        -200:
    ]


@pytest.mark.parametrize("opening", ["{% generation %}", "{%- generation -%}"])
def test_the_training_tag_renders_as_its_contents(opening):
    source = "{% for i in range(3) %}" + opening + "{{ i }}{% if i == 1 %}!{% endif %}{% endgeneration %};{% endfor %}"
    assert render(source) == "0;1!;2;"
    with pytest.raises(TemplateError, match="line 1"):
        ChatTemplate("{% generation %}no end")


def test_bounds_leave_ordinary_templates_alone():
    assert render("{{ 2 ** 10 }} {{ 3 * 4 }} {{ '-' * 20 }}") == "1024 12 " + "-" * 20
    template = ChatTemplate("{% for i in range(600000) %}{% endfor %}{{ range(7, 1, -2) | list }}")
    for _ in range(3):  # the bound is for one rendering, not for the template's life
        assert template.render(HI) == "[7, 5, 3]"
