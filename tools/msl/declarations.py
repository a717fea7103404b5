"""Splits a source into its top-level declarations and says what each one is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .tokens import (
    Token,
    is_attribute,
    matching,
    matching_angle,
    parse_attribute,
    refuse,
    significant,
    strip_attributes,
)

_TYPE_WORDS = ("struct", "union", "enum", "class")


@dataclass
class Declaration:
    """One top-level declaration.

    ``kind``: kernel, instantiation, function_constant, constant (a file-scope table), function, struct, other, or
    layout for text between declarations (white space, preprocessor lines, namespace brackets).
    """

    kind: str
    name: str
    tokens: list[Token]


def split_declarations(tokens: Sequence[Token]) -> Iterator[Declaration]:
    """Every declaration, those inside namespaces included, in order; nothing of the text is lost."""
    index, current = 0, []
    while index < len(tokens):
        token = tokens[index]
        if token.kind in ("space", "directive") and not current:
            yield Declaration("layout", "", [token])
            index += 1
            continue
        end = index
        if token.kind == "operator" and token.text in "([{":
            end = matching(tokens, index)
        if token.text == "{" and current and _opens_namespace(current):
            yield Declaration("layout", "", [*current, token])
            yield from split_declarations(tokens[index + 1 : end])
            yield Declaration("layout", "", [tokens[end]])
            index, current = end + 1, []
            continue
        ends_function = token.text == "{" and _is_function_head(current)
        current += tokens[index : end + 1]
        index = end + 1
        if token.text == ";" or ends_function:
            yield _classify(current)
            current = []
    if significant(current):
        raise refuse(significant(current)[0], "this declaration does not end")


def top_level_words(tokens: Sequence[Token]) -> list[str]:
    """The words outside every bracket, attributes left out; of a bracket only the opening one. Ends at an ``=``."""
    kept, _ = strip_attributes(significant(tokens))
    words, index = [], 0
    while index < len(kept):
        token = kept[index]
        words.append(token.text)
        if token.text == "=":
            return [*words, kept[-1].text]
        if token.kind == "operator" and token.text in "([{":
            index = matching(kept, index)
        elif token.text == "<":
            index = matching_angle(kept, index)
        index += 1
    return words


def _opens_namespace(head: Sequence[Token]) -> bool:
    return significant(head)[0].text == "namespace"


def _is_function_head(head: Sequence[Token]) -> bool:
    words = top_level_words(head)
    if not words or "(" not in words or words[0] in ("typedef", "using", *_TYPE_WORDS):
        return False
    before = words[: words.index("(")]
    return "=" not in before and not any(word in _TYPE_WORDS for word in before)


def _is_kernel(tokens: Sequence[Token]) -> bool:
    sequence = significant(tokens)
    index = 0
    while index < len(sequence):
        if is_attribute(sequence, index):
            attributes, index = parse_attribute(sequence, index)
            if "kernel" in attributes:
                return True
            continue
        if sequence[index].text == "kernel":
            return True
        if sequence[index].text in ("(", "{", ";"):
            return False
        index += 1
    return False


def _classify(tokens: list[Token]) -> Declaration:
    sequence = significant(tokens)
    texts = [token.text for token in sequence]
    if texts == [";"]:
        return Declaration("layout", "", tokens)
    if texts[0] == "template" and texts[1] != "<":
        return Declaration("instantiation", "", tokens)
    top = top_level_words(tokens)
    if _is_kernel(tokens):
        return Declaration("kernel", top[top.index("(") - 1], tokens)
    for word in _TYPE_WORDS:
        if word in top and "(" not in top[: top.index(word)]:
            position = top.index(word)
            return Declaration("struct", top[position + 1] if position + 1 < len(top) else "", tokens)
    if top[0] in ("typedef", "static_assert", "namespace") or "using" in top:
        return Declaration("other", "", tokens)
    if top[-1] != ";" or "(" in top[: top.index("=") if "=" in top else len(top)]:
        if "(" not in top:
            raise refuse(sequence[0], "this is neither a function, a type nor a constant")
        position = top.index("(")
        name = "operator" if "operator" in top[:position] else top[position - 1]
        return Declaration("function", name, tokens)
    return _classify_variable(tokens, top)


def _classify_variable(tokens: list[Token], top: list[str]) -> Declaration:
    kept, attributes = strip_attributes(significant(tokens))
    end = next(index for index, word in enumerate(top) if word in ("=", "[", ";"))
    name = top[end - 1]
    if "constant" not in top:
        if top[0] == "constexpr" or "constexpr" in top[:2]:
            raise refuse(kept[0], f"'{name}': a file-scope constant is 'constant constexpr T name = value'")
        raise refuse(kept[0], f"'{name}': file-scope variables must be in the constant address space")
    return Declaration("function_constant" if "function_constant" in attributes else "constant", name, tokens)
