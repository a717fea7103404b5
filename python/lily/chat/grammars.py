"""Grammars of answers (JSON schema, regular expression, Lark) and of tool calls, in the Lark of llguidance."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from lily.chat.argument_values import ToolSchemas, resolve
from lily.chat.call_reader import is_writable
from lily.errors import InvalidArgumentError

__all__ = ["answer_grammar", "call_grammar", "either_grammar", "json_schema_of"]

# Between JSON tokens: nothing, a space, or a new line with its indentation; not white space without end.
_JSON_SPACE = r"( |\n {0,32})?"
_NUMBER = r"/-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?/"
_INTEGER = "/-?(0|[1-9][0-9]*)/"
_ANY_OBJECT = {"type": "object"}
_REFERENCE_DEPTH = 16


def answer_grammar(response_format: Mapping[str, Any] | str | None) -> str | None:
    """The grammar of an answer; None where any text will do.

    Parameters
    ----------
    response_format
        None or ``{"type": "text"}``; ``{"type": "json_object"}``; ``{"type": "json_schema", "json_schema": {"schema":
        ...}}`` or with ``schema`` beside the type; ``{"type": "regex", "regex": ...}``; ``{"type": "grammar",
        "grammar": ...}`` in llguidance's Lark.

    Raises
    ------
    InvalidArgumentError
        It is none of these; the field is named.
    """
    if response_format is None:
        return None
    if not isinstance(response_format, Mapping):
        raise InvalidArgumentError(f"response_format must be a mapping with a type, not {response_format!r}")
    kind = response_format.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return f"start: {_json(_ANY_OBJECT)}"
    if kind == "json_schema":
        return f"start: {_json(json_schema_of(response_format))}"
    if kind in ("regex", "grammar"):
        text = response_format.get(kind)
        if not isinstance(text, str) or not text:
            raise InvalidArgumentError(f"response_format.{kind} must be a string that is not empty, not {text!r}")
        return text if kind == "grammar" else f"start: {_regex(text)}"
    raise InvalidArgumentError(
        f"response_format.type must be one of text, json_object, json_schema, regex and grammar, not {kind!r}"
    )


def json_schema_of(response_format: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of a ``json_schema`` response format, in OpenAI's chat or responses form."""
    outer = response_format.get("json_schema", response_format)
    schema = outer.get("schema") if isinstance(outer, Mapping) else None
    if not isinstance(schema, Mapping):
        raise InvalidArgumentError("response_format.json_schema.schema must be a JSON schema")
    return schema


def call_grammar(
    tools: ToolSchemas, names: Sequence[str], *, open_tag: int, close_tag: int, parallel: bool = True
) -> str:
    """The grammar of one or more calls of the named tools, each as the chat template writes it.

    Parameters
    ----------
    tools, names
        The tools, and which of them may be called.
    open_tag, close_tag
        Ids of the tags around a call.
    parallel
        False allows one call only.
    """
    rules = ['calls: call ("\\n" call)*' if parallel else "calls: call"]
    rules.append(f'call: <[{open_tag}]> "\\n" ({" | ".join(f"tool_{at}" for at in range(len(names)))}) <[{close_tag}]>')
    for at, name in enumerate(names):
        rules += _tool_rules(f"tool_{at}", name, tools)
    return "\n".join(["start: calls", *rules])


def either_grammar(answer: str, calls: str) -> str:
    """The grammar of an answer or calls, as JSON text of llguidance's several grammars."""
    start = "start: answer | calls\nanswer: @answer\ncalls: @calls"
    return json.dumps(
        {
            "grammars": [
                {"lark_grammar": start},
                {"name": "answer", "lark_grammar": answer},
                {"name": "calls", "lark_grammar": calls},
            ]
        }
    )


def _tool_rules(rule: str, name: str, tools: ToolSchemas) -> list[str]:
    root = tools.parameters(name)
    required = root.get("required")
    needed = required if isinstance(required, (list, tuple)) else ()
    rules: list[str] = []
    uses: list[str] = []
    for at, (parameter, schema) in enumerate(tools.properties(name).items()):
        if not is_writable(parameter):
            if parameter in needed:
                raise InvalidArgumentError(f"tools: {name} needs {parameter[:80]!r}, which cannot be written in a call")
            continue
        parameter_rule = f"{rule}_{at}"
        rules.append(f"{parameter_rule}: {_quoted(f'<parameter={parameter}>' + chr(10))} {parameter_rule}_value")
        rules.append(_value_rule(f"{parameter_rule}_value", schema, root))
        uses.append(parameter_rule if parameter in needed else f"{parameter_rule}?")
    head = f"{rule}: {_quoted(f'<function={name}>' + chr(10))}"
    return [" ".join([head, *uses, _quoted("</function>\n")]), *rules]


def _value_rule(rule: str, schema: Any, root: Mapping[str, Any]) -> str:
    """A parameter's value with its closing tag."""
    end = "\n</parameter>\n"
    alternatives = _alternatives(schema, root)
    if alternatives is None:
        return f"{rule}[suffix={_quoted(end)}]: /(.|\\n)*/"
    return f"{rule}: ({' | '.join(alternatives)}) {_quoted(end)}"


def _alternatives(schema: Any, root: Mapping[str, Any], depth: int = _REFERENCE_DEPTH) -> list[str] | None:
    """Expressions for the values that fit; None where any text does.

    Strings stand in a call without quotes, wherever the schema says that they are strings: behind references, too.
    """
    if not isinstance(schema, Mapping) or depth == 0:
        return None
    if isinstance(schema.get("$ref"), str):
        return _alternatives(resolve(schema["$ref"], root), root, depth - 1)
    choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(choices, (list, tuple)) and choices:
        return [_quoted(choice if isinstance(choice, str) else json.dumps(choice)) for choice in choices]
    whole = schema.get("allOf")
    if isinstance(whole, (list, tuple)) and len(whole) == 1 and "type" not in schema:
        return _alternatives(whole[0], root, depth - 1)
    branches = schema.get("anyOf", schema.get("oneOf"))
    if isinstance(branches, (list, tuple)) and branches:
        found = [_alternatives(branch, root, depth - 1) for branch in branches]
        return None if None in found else [one for several in found for one in several or ()]
    kinds = schema.get("type")
    names = [kinds] if isinstance(kinds, str) else list(kinds) if isinstance(kinds, (list, tuple)) else []
    if not names or "string" in names:
        return None
    simple = {"integer": _INTEGER, "number": _NUMBER, "boolean": '"true" | "false"', "null": '"null"'}
    bounds = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"} & set(schema)
    expressions = []
    for name in names:
        if name in simple and not bounds:
            expressions.append(simple[name])
        else:
            expressions.append(_json(_with_definitions({**schema, "type": name}, root), lenient=True))
    return expressions


def _with_definitions(schema: Mapping[str, Any], root: Mapping[str, Any]) -> dict[str, Any]:
    definitions = {word: root[word] for word in ("$defs", "definitions") if word in root}
    return {**definitions, **schema}


def _json(schema: Mapping[str, Any], *, lenient: bool = False) -> str:
    """`lenient`: keywords that the grammar cannot express, such as uniqueItems, are left to whoever checks the call."""
    guidance = schema.get("x-guidance")
    options = {
        "whitespace_pattern": _JSON_SPACE,
        "lenient": lenient,
        **(guidance if isinstance(guidance, Mapping) else {}),
    }
    try:
        return "%json " + json.dumps({**schema, "x-guidance": options})
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"the JSON schema is not JSON ({error})") from error


def _regex(expression: str) -> str:
    # A slash ends a regular expression in Lark; one that is escaped already stays.
    return "/" + re.sub(r"\\.|/", lambda match: r"\/" if match[0] == "/" else match[0], expression, flags=re.S) + "/"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
