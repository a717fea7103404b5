"""Rewrites that turn a declaration into C++, the same for every back end; what differs is asked of the back end."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from .tokens import Token, generated, is_attribute, join, layout, parse_attribute, refuse, significant

_SWIZZLE = re.compile(r"[xyzw]{2,4}$|[rgba]{2,4}$")


class StatementWriter(Protocol):
    """The part of a back end that rewriting a function body needs."""

    rewrites_swizzles: bool

    def threadgroup_variable(self, type_name: str, name: str, dimensions: str) -> str:
        """The declaration of ``threadgroup type name dimensions;`` inside a kernel."""


def rewrite_body(tokens: Sequence[Token], writer: StatementWriter, in_kernel: bool) -> list[Token]:
    """A function body or struct with threadgroup variables, swizzles and attributes rewritten."""
    output: list[Token] = []
    index, starts_statement = 0, True
    while index < len(tokens):
        token = tokens[index]
        if token.kind in ("space", "directive"):
            output.append(token)
            index += 1
        elif starts_statement and token.text == "threadgroup" and (end := _variable_end(tokens, index)):
            output += _threadgroup_variable(tokens[index:end], writer, in_kernel)
            index = end + 1
        elif starts_statement and token.text == "static" and _declares_variable(tokens, index):
            raise refuse(token, "no static variables in functions")
        elif writer.rewrites_swizzles and _is_swizzle(tokens, index):
            positions = ", ".join(str("xyzwrgba".index(letter) % 4) for letter in tokens[index + 1].text)
            output.append(generated(f"{token.text}template lily_swizzle<{positions}>()", token))
            index, starts_statement = index + 2, False
        elif is_attribute(tokens, index):
            _, index = parse_attribute(tokens, index)
        else:
            starts_statement = token.text in (";", "{", "}")
            output.append(token)
            index += 1
    return output


def _is_swizzle(tokens: Sequence[Token], index: int) -> bool:
    if tokens[index].text not in (".", "->") or index + 1 >= len(tokens) or tokens[index + 1].kind != "name":
        return False
    called = index + 2 < len(tokens) and tokens[index + 2].text == "("
    return bool(_SWIZZLE.match(tokens[index + 1].text)) and not called


def _declares_variable(tokens: Sequence[Token], index: int) -> bool:
    for token in tokens[index:]:
        if token.text in (";", "=", "["):
            return True
        if token.text in ("(", "{"):
            return False
    return False


def _variable_end(tokens: Sequence[Token], index: int) -> int:
    """Index of the ';' of a threadgroup variable declared at ``index``; 0 for a pointer or reference."""
    for end in range(index, len(tokens)):
        if tokens[end].text in ("*", "&", "("):
            return 0
        if tokens[end].text == "[" or tokens[end].text == ";":
            break
    while tokens[end].text != ";":
        end += 1
    return end


def _threadgroup_variable(tokens: Sequence[Token], writer: StatementWriter, in_kernel: bool) -> list[Token]:
    at, declared = tokens[0], significant(tokens[1:])
    if not in_kernel:
        raise refuse(at, "threadgroup variables may only be declared in kernel functions")
    if any(token.text == "=" for token in declared) or "," in _outside_brackets(declared):
        raise refuse(at, "declare one threadgroup variable a statement, without an initialiser")
    bracket = next((index for index, token in enumerate(declared) if token.text == "["), len(declared))
    type_name = " ".join(token.text for token in declared[: bracket - 1])
    text = writer.threadgroup_variable(type_name, declared[bracket - 1].text, join(declared[bracket:]))
    return [generated(text, at), *layout(tokens)]


def _outside_brackets(tokens: Sequence[Token]) -> list[str]:
    depth, kept = 0, []
    for token in tokens:
        depth += token.text in ("<", "[", "(")
        depth -= token.text in (">", "]", ")")
        if depth == 0:
            kept.append(token.text)
    return kept
