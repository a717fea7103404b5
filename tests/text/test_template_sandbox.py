"""Tests of the environment of chat templates: its filters and functions, the sandbox and its bounds."""

import datetime
import json

import pytest

from lily.errors import TemplateError
from lily.text import ChatTemplate

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
    ],
)
def test_runaway_templates_are_stopped(source):
    with pytest.raises(TemplateError):
        render(source)


def test_bounds_leave_ordinary_templates_alone():
    assert render("{{ 2 ** 10 }} {{ 3 * 4 }} {{ '-' * 20 }}") == "1024 12 " + "-" * 20
    template = ChatTemplate("{% for i in range(600000) %}{% endfor %}{{ range(7, 1, -2) | list }}")
    for _ in range(3):  # the bound is for one rendering, not for the template's life
        assert template.render(HI) == "[7, 5, 3]"
