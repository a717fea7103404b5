"""Grammars of answers (JSON schema, regular expression, Lark) and of tool calls, in the Lark of llguidance."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lily.chat.argument_values import ToolSchemas
from lily.chat.call_tags import is_writable
from lily.chat.grammar_budget import GrammarBudget, SchemaTooLargeError
from lily.chat.grammar_schema import GrammarSchema, shortened
from lily.chat.lark_text import UNFORCED, bounded_grammar
from lily.chat.schema_limits import check_json
from lily.chat.schema_references import References
from lily.chat.schema_types import ANY, leaf_schemas, types_of
from lily.errors import InvalidArgumentError

__all__ = [
    "Grammar",
    "answer_grammar",
    "call_grammar",
    "check_response_format",
    "dropped_keywords",
    "either_grammar",
    "json_schema_of",
]

# Between JSON tokens: nothing, a space, or a new line with its indentation, but not endless white space.
_JSON_SPACE = r"( |\n {0,32})?"
_NUMBER = r"/-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?/"
_INTEGER = "/-?(0|[1-9][0-9]*)/"
# Templates write scalars as JSON or as Python, and models imitate what they were shown.
_BOOLEAN = '"true" | "false" | "True" | "False"'
_NULL = '"null" | "None"'
_BOUNDS = frozenset(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "allOf", "not"])
_ANY_OBJECT = {"type": "object"}
_MAX_REGEX = 20_000  # characters
_MAX_GRAMMAR = 50_000


class Grammar(str):
    """The text of a grammar.

    Attributes
    ----------
    dropped : tuple of str
        Requirements that the grammar does not enforce, such as "uniqueItems at #/properties/a".
    simpler : callable, optional
        Makes a less strict grammar, in case the library cannot compile this one. Its arguments are the library's
        reason, and a function that tells whether a part of the grammar can be compiled. None: there is none.
    """

    dropped: tuple[str, ...]
    simpler: Simpler | None

    def __new__(
        cls,
        text: str,
        dropped: Sequence[str] = (),
        simpler: Simpler | None = None,
    ) -> Grammar:
        grammar = super().__new__(cls, text)
        grammar.dropped = tuple(dropped)
        grammar.simpler = simpler
        return grammar


Simpler = Callable[[str, Callable[[str], bool]], Grammar | None]


def answer_grammar(response_format: Mapping[str, Any] | str | None) -> Grammar | None:
    """The grammar of an answer; None if any text is allowed.

    Keywords of a JSON schema that no grammar can express are left out of it, see `Grammar.dropped`.

    Parameters
    ----------
    response_format
        None or ``{"type": "text"}``; ``{"type": "json_object"}``; ``{"type": "json_schema", "json_schema": {"schema":
        ...}}`` or with ``schema`` beside the type; ``{"type": "regex", "regex": ...}``; ``{"type": "grammar",
        "grammar": ...}`` in llguidance's Lark.

    Raises
    ------
    InvalidArgumentError
        It is none of these, or too large for a grammar; the error names the field.
    """
    check_response_format(response_format)
    if not isinstance(response_format, Mapping) or response_format["type"] == "text":
        return None
    kind: str = response_format["type"]
    if kind == "json_object":
        return Grammar(f"start: {_json(_ANY_OBJECT)}")
    if kind == "json_schema":
        schema = json_schema_of(response_format)
        check_json(schema, "response_format: the JSON schema")
        return _schema_grammar(schema)
    text = response_format[kind]
    return _lark_grammar(text) if kind == "grammar" else Grammar(f"start: {_regex(text)}")


def check_response_format(response_format: Mapping[str, Any] | str | None) -> None:
    """Refuse an invalid response format, without looking into its schema; errors as for `answer_grammar`."""
    if response_format is None:
        return
    if not isinstance(response_format, Mapping):
        raise InvalidArgumentError(f"response_format must be a mapping with a type, not {_shown(response_format)}")
    kind = response_format.get("type")
    if kind in ("text", "json_object"):
        return
    if kind == "json_schema":
        json_schema_of(response_format)
        return
    if kind not in ("regex", "grammar"):
        raise InvalidArgumentError(
            f"response_format.type must be one of text, json_object, json_schema, regex and grammar, not {_shown(kind)}"
        )
    text = response_format.get(kind)
    if not isinstance(text, str) or not text:
        raise InvalidArgumentError(f"response_format.{kind} must be a non-empty string, not {_shown(text)}")
    longest = _MAX_REGEX if kind == "regex" else _MAX_GRAMMAR
    if len(text) > longest:
        raise InvalidArgumentError(
            f"response_format.{kind} is too long: {len(text)} characters; at most {longest} are allowed"
        )


def json_schema_of(response_format: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of a ``json_schema`` response format, in OpenAI's chat or responses form."""
    outer = response_format.get("json_schema", response_format)
    schema = outer.get("schema") if isinstance(outer, Mapping) else None
    if not isinstance(schema, Mapping):
        raise InvalidArgumentError("response_format.json_schema.schema must be a JSON schema")
    return schema


def dropped_keywords(response_format: Mapping[str, Any] | str | None) -> tuple[str, ...]:
    """Requirements of a response format that its grammar does not enforce, see `Grammar`."""
    grammar = answer_grammar(response_format)
    return () if grammar is None else grammar.dropped


def call_grammar(
    tools: ToolSchemas, names: Sequence[str], *, open_tag: int, close_tag: int, parallel: bool = True
) -> Grammar:
    """The grammar of one or more calls of the named tools, each as the chat template writes it.

    Requirements that a grammar cannot express are left out, see `Grammar.dropped`.

    Parameters
    ----------
    tools, names
        The tools, and which of them may be called.
    open_tag, close_tag
        Ids of the tags around a call.
    parallel
        False allows one call only.

    Raises
    ------
    InvalidArgumentError
        A required parameter has a name that cannot be written in a call.
    """
    rules = ['calls: call ("\\n" call)*' if parallel else "calls: call"]
    rules.append(f'call: <[{open_tag}]> "\\n" ({" | ".join(f"tool_{at}" for at in range(len(names)))}) <[{close_tag}]>')
    writer = _CallRules(tools)
    for at, name in enumerate(names):
        rules += writer.rules_of(f"tool_{at}", name)
    return writer.grammar("\n".join(["start: calls", *rules]))


def either_grammar(answer: str, calls: str) -> Grammar:
    """The grammar of an answer or calls, as JSON text of llguidance's several grammars."""
    start = "start: answer | calls\nanswer: @answer\ncalls: @calls"
    if answer.endswith(UNFORCED):
        start += UNFORCED
    text = json.dumps(
        {
            "grammars": [
                {"lark_grammar": start},
                {"name": "answer", "lark_grammar": answer},
                {"name": "calls", "lark_grammar": calls},
            ]
        }
    )
    parts = [part if isinstance(part, Grammar) else Grammar(part) for part in (answer, calls)]

    def simpler(reason: str, is_valid: Callable[[str], bool]) -> Grammar | None:
        found = [None if part.simpler is None else part.simpler(reason, is_valid) for part in parts]
        return either_grammar(*(new or old for new, old in zip(found, parts, strict=True))) if any(found) else None

    dropped = [keyword for part in parts for keyword in part.dropped]
    return Grammar(text, dropped, simpler if any(part.simpler for part in parts) else None)


def _lark_grammar(text: str) -> Grammar:
    budget = GrammarBudget()
    dropped: list[str] = []

    def rewrite(schema: Mapping[str, Any]) -> Mapping[str, Any]:
        written = GrammarSchema(schema, References(schema), budget=budget)
        dropped.extend(written.dropped)
        guidance = {"x-guidance": schema["x-guidance"]} if "x-guidance" in schema else {}
        return {**written.schema, **guidance}

    try:
        return Grammar(bounded_grammar(text, rewrite), shortened(dropped))
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"response_format: {error}") from error


def _schema_grammar(schema: Mapping[str, Any], *, combine: bool = True) -> Grammar:
    try:
        written = GrammarSchema(schema, References(schema), combine=combine)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"response_format: {error}") from error
    guidance = schema.get("x-guidance")
    expression = _json(written.schema, options=guidance if isinstance(guidance, Mapping) else None)

    def simpler(reason: str, _: Callable[[str], bool]) -> Grammar | None:
        return None if "Unsatisfiable" in reason else _schema_grammar(schema, combine=False)

    return Grammar(f"start: {expression}", written.dropped, simpler if combine else None)


class _CallRules:
    """Writes the rules of tools, and records what must be left out of them."""

    def __init__(self, tools: ToolSchemas) -> None:
        self._tools = tools
        self._budget = GrammarBudget()
        self._dropped: list[str] = []
        self._expressions: dict[str, tuple[str, str]] = {}  # a simpler one, and where, for each that may not compile

    def grammar(self, text: str) -> Grammar:
        """The grammar of these rules."""

        def simpler(_: str, is_valid: Callable[[str], bool]) -> Grammar | None:
            reduced, dropped = text, list(self._dropped)
            for expression, (replacement, where) in self._expressions.items():
                if not is_valid(f"start: {expression}"):
                    reduced = reduced.replace(expression, replacement)
                    dropped.append(f"all of the schema at {where}")
            return Grammar(reduced, shortened(dropped)) if reduced != text else None

        return Grammar(text, shortened(self._dropped), simpler if self._expressions else None)

    def rules_of(self, rule: str, name: str) -> list[str]:
        """The rules of a tool."""
        head = f"{rule}: {_quoted(f'<function={name}>' + chr(10))}"
        if not self._budget.takes_parameters(len(self._tools.properties(name))):
            self._dropped.append(f"all parameters of {name[:40]}")
            any_parameter = f'"<parameter=" /[^<>\\n]{{1,200}}/ ">\\n" {rule}_value'
            return [
                f"{head} {rule}_any* {_quoted('</function>' + chr(10))}",
                f"{rule}_any: {any_parameter}",
                *self._value_rules(f"{rule}_value", {}, name, ""),
            ]
        required = self._tools.parameters(name).get("required")
        needed = set(required) if isinstance(required, (list, tuple)) else set()
        rules: list[str] = []
        uses: list[str] = []
        for at, (parameter, schema) in enumerate(self._tools.properties(name).items()):
            if not is_writable(parameter) or not _is_encodable(parameter):
                if parameter in needed:
                    raise InvalidArgumentError(
                        f"tools: {name} needs {parameter[:80]!r}, which cannot be written in a call"
                    )
                continue
            parameter_rule = f"{rule}_{at}"
            opening = _quoted(f"<parameter={parameter}>" + chr(10))
            rules.append(f"{parameter_rule}: {opening} {parameter_rule}_value")
            rules += self._value_rules(f"{parameter_rule}_value", schema, name, parameter)
            uses.append(parameter_rule if parameter in needed else f"{parameter_rule}?")
        return [" ".join([head, *uses, _quoted("</function>\n")]), *rules]

    def _value_rules(self, rule: str, schema: Any, tool: str, parameter: str) -> list[str]:
        """A parameter's value with its closing tag."""
        end = "\n</parameter>\n"
        alternatives = self._alternatives(schema, tool, parameter)
        if alternatives is None:
            return [f"{rule}[suffix={_quoted(end)}]: /(.|\\n)*/"]
        words = [one for one in alternatives if one.startswith('"')]
        if len(words) < 2:
            return [f"{rule}: ({' | '.join(alternatives)}) {_quoted(end)}"]
        # One terminal, however many there are: the parser would look at each of several.
        others = [one for one in alternatives if not one.startswith('"')]
        name = rule.upper()
        return [f"{rule}: ({' | '.join([name, *others])}) {_quoted(end)}", f"{name}: {' | '.join(words)}"]

    def _alternatives(self, schema: Any, tool: str, parameter: str) -> list[str] | None:
        """Expressions for the values that fit; None if any text does.

        Values that the schema declares as strings stand in a call without quotes.
        """
        references = self._tools.references(tool)
        where = f"{tool[:40]}.{parameter[:40]}"
        found: dict[str, None] = {}
        for leaf in leaf_schemas(schema, references):
            expressions = self._of_leaf(leaf, references, where) if isinstance(leaf, Mapping) else None
            if expressions is None:
                return None
            found.update(dict.fromkeys(expressions))
        return list(found) or None

    def _of_leaf(self, schema: Mapping[str, Any], references: References, where: str) -> list[str] | None:
        choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if isinstance(choices, (list, tuple)) and choices:
            if not self._budget.takes_literals(choices):
                self._dropped.append(f"enum of {where}")
                return None
            nulls = [None] if schema.get("nullable") is True else []
            return [form for choice in [*choices, *nulls] for form in _written_forms(choice)] or None
        kinds = types_of(schema)
        if not kinds and "type" not in schema:
            kinds = ("object",) if "properties" in schema else ("array",) if "items" in schema else ()
        if not kinds or "string" in kinds or ANY in kinds:
            return None
        simple = {"integer": _INTEGER, "number": _NUMBER, "boolean": _BOOLEAN, "null": _NULL}
        expressions: list[str] = []
        for kind in kinds:
            if kind in ("boolean", "null") or (kind in simple and not _BOUNDS & schema.keys()):
                expressions += simple[kind].split(" | ")
            else:
                expressions.append(self._json_expression({**schema, "type": kind}, kind, references, where))
        return expressions

    def _json_expression(self, schema: Mapping[str, Any], kind: str, references: References, where: str) -> str:
        anything = _json({"type": kind})
        try:
            written = GrammarSchema(schema, references, tolerant=True, budget=self._budget)
        except SchemaTooLargeError:
            self._dropped.append(f"all of the schema at {where}")
            return anything
        self._dropped += [f"{keyword} of {where}" for keyword in written.dropped]
        expression = _json(written.schema)
        if expression != anything:
            self._expressions[expression] = (anything, where)
        return expression


def _written_forms(choice: Any) -> list[str]:
    """How templates write a value of an enum."""
    if isinstance(choice, str):
        return [_quoted(choice)] if _is_encodable(choice) else []
    if choice is None or isinstance(choice, bool):
        return [_quoted(json.dumps(choice)), _quoted(str(choice))]
    text = json.dumps(choice, ensure_ascii=False)
    return [_quoted(text)] if _is_encodable(text) else []


def _json(schema: Mapping[str, Any], *, options: Mapping[str, Any] | None = None) -> str:
    guidance = {"whitespace_pattern": _JSON_SPACE, "lenient": True, **(options or {})}
    return "%json " + json.dumps({**schema, "x-guidance": guidance})


def _regex(expression: str) -> str:
    # A slash ends a regular expression in Lark; an escaped one may stay.
    return "/" + re.sub(r"\\.|/", lambda match: r"\/" if match[0] == "/" else match[0], expression, flags=re.S) + "/"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _is_encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:  # a lone surrogate, which no token holds
        return False
    return True


def _shown(value: Any) -> str:
    text = repr(value) if isinstance(value, (str, int, float, bool, type(None))) else f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:80]}..."
