"""The sandbox that chat templates run in: what they may call, and how their work is counted.

A template is a program that comes with the checkpoint. It can reach no file, no network and no Python object but those
it is given. Its steps, texts and processor time are bounded (`template_budget`), and operations with huge results are
refused beforehand (`template_guards`). That stops broken templates and simple attacks, but not all: comparing specially
built values can still keep a processor busy, so load templates only from sources you trust.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import jinja2
from jinja2 import Undefined, nodes
from jinja2.compiler import CodeGenerator, Frame, MacroRef
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment, is_internal_attribute

from lily.text.template_budget import SHORT, counted, current_budget, text_size
from lily.text.template_guards import CHECKED_OWNERS, check_format, checked_arguments, guard_filters, operate
from lily.text.text_marks import BREAK, ESCAPE, ITSELF

__all__ = ["TemplateRefusal", "bounded_range", "make_environment"]

RANGE_LIMIT = 1_000_000  # steps of range() in one rendering
# Filters that no chat template needs, and that are slow on specially made texts.
_NO_FILTERS = ("striptags", "urlize", "wordwrap")
_NO_GLOBALS = ("lipsum",)


# The marks in texts must survive.
_BEYOND_ASCII = re.compile(f"{ESCAPE}[{BREAK}-\ufdde]|[^\x00-\x7e]")


class TemplateRefusal(jinja2.TemplateError):
    """The template called raise_exception: it rejects the messages."""


class _GenerationTag(Extension):
    """{% generation %}...{% endgeneration %}, with which training marks the assistant's text: renders the contents."""

    tags = {"generation"}  # noqa: RUF012 -- so named by Jinja

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _CountingGenerator(CodeGenerator):
    """Compiles templates to code that counts loops and macros and checks the values that it outputs."""

    _counter = "lily_count"  # a local name in the compiled functions, visible to their inner functions

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._counted: set[int] = set()  # identities of bodies

    def visit_For(self, node: nodes.For, frame: Frame) -> None:  # noqa: N802 -- so named by Jinja
        self._counted.add(id(node.body))
        super().visit_For(node, frame)

    def macro_body(self, node: nodes.Macro | nodes.CallBlock, frame: Frame) -> tuple[Frame, MacroRef]:
        self._counted.add(id(node.body))
        return super().macro_body(node, frame)

    def blockvisit(self, nodes: Iterable[nodes.Node], frame: Frame) -> None:
        if frame.parent is None:
            self.writeline(f"{self._counter} = environment.counter()")
        elif id(nodes) in self._counted:
            self.writeline(f"{self._counter}()")
        super().blockvisit(nodes, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802 -- so named by Jinja
        self.write("concat((")
        for part in node.nodes:
            self.write("environment.as_text(")
            self.visit(part, frame)
            self.write("), ")
        self.write("))")

    def _output_child_pre(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        self.write("environment.as_text(")


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(["+", "*", "**", "%"])
    code_generator_class = _CountingGenerator

    @staticmethod
    def counter() -> Callable[[], None]:
        """Called by the compiled code for each body of a loop or a macro."""
        return current_budget().step

    @staticmethod
    def as_text(value: Any) -> str:
        """The text of an output value, after a check of its size."""
        if type(value) is not str:
            if isinstance(value, (list, tuple, dict, set)):
                current_budget().take(text_size(value))
            return str(value)
        return value

    @staticmethod
    def concat(parts: Iterable[str]) -> str:
        """Join the output of a macro, a set block or ~."""
        texts = parts if isinstance(parts, (list, tuple)) else list(parts)
        if len(texts) == 1:
            return texts[0]
        size = sum(map(len, texts))
        if size > SHORT:
            current_budget().take(size)
        return "".join(texts)

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        if attribute.startswith("__") or is_internal_attribute(obj, attribute):
            raise SecurityError(f"access to attribute {attribute!r} of a {type(obj).__name__} is not allowed")
        return super().unsafe_undefined(obj, attribute)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator != "+":
            return operate(operator, left, right)
        result = left + right
        return counted(result) if isinstance(result, (str, list)) and len(result) > SHORT else result

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 -- as Jinja's
        if type(getattr(__obj, "__self__", None)) in CHECKED_OWNERS:
            args = checked_arguments(__obj, args)
        result = super().call(__context, __obj, *args, **kwargs)
        return counted(result) if isinstance(result, (str, list)) and len(result) > SHORT else result

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        def checked(*args: Any, **kwargs: Any) -> str:
            check_format(value.__self__, (*args, *kwargs.values()), "{")
            return wrapped(*args, **kwargs)

        return checked


def make_environment() -> ImmutableSandboxedEnvironment:
    """Return an environment with the filters and functions that chat templates of this family need."""
    environment = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", _GenerationTag],
        keep_trailing_newline=False,
    )
    for name in _NO_FILTERS:
        del environment.filters[name]
    for name in _NO_GLOBALS:
        del environment.globals[name]
    environment.filters["tojson"] = _to_json
    guard_filters(environment.filters)
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def bounded_range() -> Callable[..., range]:
    """Return a `range` for one rendering; all its calls together may make at most RANGE_LIMIT steps."""
    steps_left = RANGE_LIMIT

    def limited_range(*arguments: int) -> range:
        nonlocal steps_left
        steps = range(*arguments)
        # len() of a huge range overflows; its bounds tell.
        count = max(0, -(-(steps.stop - steps.start) // steps.step))
        steps_left -= count + 1
        if steps_left < 0:
            raise OverflowError(f"loops over range() take more than {RANGE_LIMIT} steps")
        return steps

    return limited_range


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja2's own tojson escapes HTML and sorts keys, which is not what models were trained on.
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
    return _BEYOND_ASCII.sub(_escaped, text) if ensure_ascii else text


def _escaped(match: re.Match[str]) -> str:
    if match[0] == ESCAPE + ITSELF:
        return json.dumps(ESCAPE)[1:-1]
    return match[0] if match[0].startswith(ESCAPE) and len(match[0]) > 1 else json.dumps(match[0])[1:-1]


def _raise_exception(message: str) -> NoReturn:
    raise TemplateRefusal(str(message))


def _strftime_now(format: str) -> str:
    return datetime.datetime.now().strftime(format)
