"""Refuses what the devices cannot all run: the rules for kernels that can be read off the tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from .kernels import ADDRESS_SPACES, Module
from .tokens import SubsetError, Token, matching, refuse, significant

_BANNED = {
    "double": "Metal has no double",
    "new": "Metal has no new and delete",
    "delete": "Metal has no new and delete",
    "goto": "Metal has no goto",
    "virtual": "Metal has no virtual functions",
    "dynamic_cast": "Metal has no run-time type information",
    "typeid": "Metal has no run-time type information",
    "try": "Metal has no exceptions",
    "throw": "Metal has no exceptions",
    "catch": "Metal has no exceptions",
    "thread_local": "Metal has no thread_local",
    "std": "Metal has no C++ standard library",
    "asm": "no assembler in kernels",
    "mutable": "no mutable members in kernels",
    "reinterpret_cast": "use a C-style cast that names the address space, or as_type<T>()",
}
_SCALARS = ("float", "half", "bfloat", "bool", "char", "uchar", "short", "ushort", "int", "uint", "long", "ulong")
_POINTEES = {"void", "atomic_uint", "atomic_int", "atomic_float"} | {
    scalar + count for scalar in _SCALARS for count in ("", "2", "3", "4")
}
_INTEGER = re.compile(r"(0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)([uU]?[lL]{0,2}|[lL]{1,2}[uU]?)$")
_FLOAT = re.compile(r"(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][+-]?\d+)?f$")
_ARGUMENT_TYPES = {"uint32_t", "int32_t", "uint", "int", "float"}


def check_tokens(tokens: Sequence[Token], type_names: set[str]) -> None:
    """Banned words, literals, lambdas, function pointers, and pointers or references without an address space.

    ``type_names`` are the template parameters and structs of the source. Raises one error with every finding.
    """
    sequence = significant(tokens)
    findings = [*_banned(sequence), *_literals(sequence), *_pointers(sequence, _POINTEES | type_names)]
    if findings:
        raise SubsetError("\n".join(str(refuse(token, reason)) for token, reason in findings))


def type_names(tokens: Sequence[Token]) -> set[str]:
    """Names that the source introduces as types."""
    sequence = significant(tokens)
    return {
        following.text
        for token, following in pairwise(sequence)
        if token.text in ("typename", "class", "struct") and following.kind == "name"
    }


def _banned(tokens: Sequence[Token]) -> Iterator[tuple[Token, str]]:
    for index, token in enumerate(tokens):
        if token.kind == "name" and token.text in _BANNED:
            yield token, _BANNED[token.text]
        if token.text == "constexpr" and index and tokens[index - 1].text == "if":
            yield token, "Metal before 4.0 is C++14: write 'if', the condition is constant all the same"
        if token.text == "[" and _opens_lambda(tokens, index):
            yield token, "no lambdas in kernels"
        if token.text == "(" and _opens_function_pointer(tokens, index):
            yield token, "no function pointers in kernels"


def _opens_lambda(tokens: Sequence[Token], index: int) -> bool:
    before, after = tokens[index - 1].text if index else "", tokens[index + 1].text
    return before in ("=", "(", ",", "return", "{") and after in ("&", "=", "]")


def _opens_function_pointer(tokens: Sequence[Token], index: int) -> bool:
    """``type (*name)(``"""
    texts = [token.text for token in tokens[index - 1 : index + 5]]
    return len(texts) == 6 and texts[0] in _POINTEES and texts[2] == "*" and texts[4:] == [")", "("]


def _literals(tokens: Sequence[Token]) -> Iterator[tuple[Token, str]]:
    for token in tokens:
        if token.kind == "number" and not _INTEGER.match(token.text) and not _FLOAT.match(token.text):
            yield token, f"write the literal {token.text} as a float with the suffix f, as in 0.5f"


def _pointers(tokens: Sequence[Token], types: set[str]) -> Iterator[tuple[Token, str]]:
    for index, token in enumerate(tokens):
        if token.text == "(" and (finding := _cast_without_space(tokens, index)):
            yield token, finding
        if token.text not in ("*", "&") or index + 1 == len(tokens) or not index:
            continue
        before, after = tokens[index - 1], tokens[index + 1]
        if before.text not in types and before.text != ">" and before.text != "const":
            continue
        if after.kind != "name" and after.text not in (")", ",", "&"):
            continue
        start = _declaration_start(tokens, index - 1)
        written = [tokens[position].text for position in range(start, index)]
        known = types | {"vec", "simdgroup_matrix", "const"}
        if before.text in (">", "const") and not (written and written[0] in known):
            continue
        if not any(space in written for space in ADDRESS_SPACES):
            yield token, f"pointer or reference to '{' '.join(written)}' needs an address space"


def _declaration_start(tokens: Sequence[Token], index: int) -> int:
    """Index of the first token of the type that ends at ``index``."""
    depth = 0
    while index >= 0:
        text = tokens[index].text
        if text == ">":
            depth += 1
        elif text == "<" and depth:
            depth -= 1
        elif depth == 0 and (text == "return" or not (tokens[index].kind == "name" or text == "::")):
            break
        index -= 1
    return index + 1


def _cast_without_space(tokens: Sequence[Token], index: int) -> str:
    end = matching(tokens, index)
    inner = [token.text for token in tokens[index + 1 : end]]
    if len(inner) < 2 or inner[-1] != "*" or tokens[index + 1].kind != "name":
        return ""
    called = index > 0 and tokens[index - 1].kind == "name" and tokens[index - 1].text not in ("return", "case")
    plain = all(token.kind in ("name", "number") or token.text in "<>,*::" for token in tokens[index + 1 : end])
    if called or not plain or any(text in ADDRESS_SPACES for text in inner):
        return ""
    return "a pointer cast must name the address space"


def check_recursion(module: Module) -> None:
    """Refuses functions that reach themselves: Metal has no recursion."""
    for name, used in module.uses.items():
        for callee in used:
            if callee in module.uses and name in module.reachable(callee) and name not in module.structs:
                raise SubsetError(f"error: '{name}' is recursive (through '{callee}'): Metal has no recursion")


def check_argument_structs(module: Module) -> None:
    """Argument structs hold 4-byte scalars only, so that every compiler lays them out alike."""
    for kernel in module.kernels.values():
        for parameter in kernel.parameters:
            if parameter.kind == "bytes":
                _check_fields(module, parameter.type.split("::")[-1].strip(), kernel.at)


def _check_fields(module: Module, struct: str, at: Token) -> None:
    if struct not in module.structs:
        raise refuse(at, f"the argument struct '{struct}' is not defined at file scope")
    body = module.structs[struct]
    start = 0
    for index, token in enumerate(body):
        if token.text != ";":
            continue
        if index > start and body[start].text not in _ARGUMENT_TYPES:
            raise refuse(body[start], f"'{struct}': argument structs hold {', '.join(sorted(_ARGUMENT_TYPES))} only")
        start = index + 1
