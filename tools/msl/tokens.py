"""Tokens of preprocessed Metal source, each with the file and line it came from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_PATTERN = re.compile(
    r"""(?P<directive>^[ \t]*\#[^\n]*)
      | (?P<space>[ \t\r\n]+)
      | (?P<string>"(?:\\.|[^"\\])*")
      | (?P<character>'(?:\\.|[^'\\])*')
      | (?P<number>\.?\d(?:[eEpP][+-]|[\w.])*)
      | (?P<name>[A-Za-z_]\w*)
      | (?P<operator>::|->|\+\+|--|<<=|>>=|&&|\|\||[-+*/%&|^<>=!]=|<<|\.\.\.|.)""",
    re.VERBOSE | re.MULTILINE | re.DOTALL,
)
_LINE_MARKER = re.compile(r'[ \t]*#\s*(?:line\s+)?(\d+)\s+"([^"]*)"')
_CLOSING = {"(": ")", "[": "]", "{": "}"}


class SubsetError(Exception):
    """The source uses something outside the subset that every device can run; the message has file and line."""


@dataclass
class Token:
    """One token; ``generated`` ones stand for text that the translator wrote."""

    kind: str
    text: str
    file: str = "?"
    line: int = 0


def refuse(token: Token, reason: str) -> SubsetError:
    """The error for a construct at ``token``."""
    return SubsetError(f"{token.file}:{token.line}: error: {reason}")


def generated(text: str, at: Token | None = None) -> Token:
    """A token written by the translator, placed where ``at`` is."""
    return Token("generated", text, at.file if at else "?", at.line if at else 0)


def tokenize(source: str) -> list[Token]:
    """Splits preprocessed source; line markers set the file and line of what follows."""
    tokens: list[Token] = []
    file, line = "?", 1
    for match in _PATTERN.finditer(source):
        kind, text = str(match.lastgroup), match.group()
        if kind == "directive" and (marker := _LINE_MARKER.match(text)):
            line, file = int(marker.group(1)) - 1, marker.group(2)
        tokens.append(Token(kind, text, file, line))
        line += text.count("\n")
    return tokens


def join(tokens: Iterable[Token]) -> str:
    """The source text of tokens."""
    return "".join(token.text for token in tokens)


def significant(tokens: Iterable[Token]) -> list[Token]:
    """Without white space and preprocessor lines."""
    return [token for token in tokens if token.kind not in ("space", "directive")]


def words(tokens: Iterable[Token]) -> list[str]:
    """The texts of the significant tokens."""
    return [token.text for token in significant(tokens)]


def layout(tokens: Iterable[Token]) -> list[Token]:
    """Only line markers and line ends: what is left when a declaration is taken out."""
    kept = []
    for token in tokens:
        if token.kind == "directive":
            kept.append(token)
        elif token.kind == "space" and "\n" in token.text:
            kept.append(Token("space", "\n" * token.text.count("\n"), token.file, token.line))
    return kept


def is_operator(token: Token, text: str) -> bool:
    return token.kind == "operator" and token.text == text


def matching(tokens: Sequence[Token], start: int) -> int:
    """Index of the bracket that closes the one at ``start``."""
    opening = tokens[start].text
    closing = _CLOSING[opening]
    depth = 0
    for index in range(start, len(tokens)):
        if is_operator(tokens[index], opening):
            depth += 1
        elif is_operator(tokens[index], closing):
            depth -= 1
            if depth == 0:
                return index
    raise refuse(tokens[start], f"no '{closing}' for this '{opening}'")


def matching_angle(tokens: Sequence[Token], start: int) -> int:
    """Index of the ``>`` that closes the template bracket at ``start``."""
    depth, index = 0, start
    while index < len(tokens):
        token = tokens[index]
        if token.kind == "operator" and token.text in _CLOSING:
            index = matching(tokens, index)
        elif token.text == "<":
            depth += 1
        elif token.text == ">":
            depth -= 1
            if depth == 0:
                return index
        index += 1
    raise refuse(tokens[start], "no '>' for this '<'")


def split_commas(tokens: Sequence[Token]) -> list[list[Token]]:
    """The parts between top-level commas."""
    parts: list[list[Token]] = []
    current: list[Token] = []
    index = 0
    while index < len(tokens):
        token = tokens[index]
        end = index
        if token.kind == "operator" and token.text in _CLOSING:
            end = matching(tokens, index)
        elif token.text == "<":
            end = matching_angle(tokens, index)
        if token.text == ",":
            parts.append(current)
            current = []
        else:
            current += tokens[index : end + 1]
        index = end + 1
    if significant(current):
        parts.append(current)
    return parts


def is_attribute(tokens: Sequence[Token], index: int) -> bool:
    return index + 1 < len(tokens) and tokens[index].text == "[" and tokens[index + 1].text == "["


def parse_attribute(tokens: Sequence[Token], start: int) -> tuple[dict[str, str], int]:
    """The attributes of the ``[[...]]`` at ``start``, each with its argument text, and the index after it."""
    end = matching(tokens, start)
    inner = significant(tokens[start + 2 : end - 1])
    attributes: dict[str, str] = {}
    index = 0
    while index < len(inner):
        name, argument = inner[index].text, ""
        if index + 1 < len(inner) and inner[index + 1].text == "(":
            close = matching(inner, index + 1)
            argument = " ".join(token.text for token in inner[index + 2 : close])
            index = close
        attributes[name] = argument
        index += 1
        if index < len(inner) and inner[index].text == ",":
            index += 1
    return attributes, end + 1


def strip_attributes(tokens: Sequence[Token]) -> tuple[list[Token], dict[str, str]]:
    """The tokens without their attributes, and the attributes."""
    kept: list[Token] = []
    attributes: dict[str, str] = {}
    index = 0
    while index < len(tokens):
        if is_attribute(tokens, index):
            found, index = parse_attribute(tokens, index)
            attributes |= found
        else:
            kept.append(tokens[index])
            index += 1
    return kept, attributes
