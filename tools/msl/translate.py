"""Translates one Metal source: reads its declarations, enforces the subset, and lets a back end write the result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from .declarations import Declaration, split_declarations
from .kernels import (
    DEFAULT_MAX_THREADS,
    FUNCTION_CONSTANTS,
    EntryPoint,
    FunctionConstant,
    Kernel,
    Module,
    parse_index,
    parse_parameters,
)
from .rewrites import StatementWriter, rewrite_body
from .subset import check_argument_structs, check_recursion, check_tokens, type_names
from .tokens import (
    Token,
    generated,
    is_attribute,
    join,
    layout,
    matching,
    matching_angle,
    parse_attribute,
    refuse,
    significant,
    split_commas,
    strip_attributes,
    tokenize,
)

_CONSTANT_TYPES = ("bool", "int", "uint")


class Backend(StatementWriter, Protocol):
    """Writes the target language."""

    def kernel_head(self, kernel: Kernel) -> str:
        """The text before the parameter list of a kernel."""

    def function_constant(self, constant: FunctionConstant) -> str:
        """The declaration of a function constant."""

    def constant(self, declaration: str) -> str:
        """A file-scope table, given without its ``constant`` and ``const``."""

    def finish(self, body: Sequence[Token], module: Module) -> str:
        """The whole output file."""


def translate(source: str, backend: Backend) -> tuple[str, Module]:
    """The translated text of preprocessed source, and what is known of its kernels.

    Raises
    ------
    SubsetError
        For anything outside the subset, with file and line.
    """
    tokens = tokenize(source)
    check_tokens(tokens, type_names(tokens))
    module, output = Module(), []
    for declaration in split_declarations(tokens):
        output += _translate_declaration(declaration, module, backend)
    check_recursion(module)
    check_argument_structs(module)
    return backend.finish(output, module), module


def _translate_declaration(declaration: Declaration, module: Module, backend: Backend) -> list[Token]:
    tokens = declaration.tokens
    if declaration.kind == "layout":
        return tokens
    if declaration.kind == "instantiation":
        module.entries.append(_read_instantiation(tokens, module))
        return layout(tokens)
    if declaration.kind == "function_constant":
        constant = _read_function_constant(tokens, module)
        if any(known.index == constant.index for known in module.constants):
            raise refuse(significant(tokens)[0], f"function constant index {constant.index} is used twice")
        module.constants.append(constant)
        return [generated(backend.function_constant(constant), tokens[0]), *layout(tokens)]
    if declaration.kind == "constant":
        kept, _ = strip_attributes(tokens)
        text = join(token for token in kept if token.text not in ("constant", "const", "static", "constexpr"))
        return [generated(backend.constant(text.strip()), tokens[0])]
    if declaration.name:
        mentioned = {token.text for token in tokens if token.kind == "name"} - {declaration.name}
        if declaration.kind == "function" and _calls_itself(declaration):
            mentioned.add(declaration.name)
        module.uses.setdefault(declaration.name, set()).update(mentioned)
    if declaration.kind == "kernel":
        return _translate_kernel(tokens, module, backend)
    if declaration.kind == "struct":
        sequence = significant(tokens)
        brace = next((index for index, token in enumerate(sequence) if token.text == "{"), len(sequence))
        body = sequence[brace + 1 : -2]
        if sequence[0].text == "enum":
            module.add_enumerators(body)
        else:
            module.structs[declaration.name] = body
    return rewrite_body(tokens, backend, in_kernel=False)


def _calls_itself(declaration: Declaration) -> bool:
    """Whether a free function names itself in its body (a call of an overload is taken for one, too)."""
    brace = next((index for index, token in enumerate(declaration.tokens) if token.text == "{"), None)
    if brace is None or declaration.name == "operator":
        return False
    body = significant(declaration.tokens[brace:])
    return any(
        token.text == declaration.name and following.text == "(" and before.text not in (".", "->", "::")
        for before, token, following in zip(body, body[1:], body[2:], strict=False)
    )


def _translate_kernel(tokens: list[Token], module: Module, backend: Backend) -> list[Token]:
    before: list[Token] = []
    while tokens[len(before)].kind in ("space", "directive"):
        before.append(tokens[len(before)])
    index, declarations, names = _read_template(tokens, len(before))
    attributes: dict[str, str] = {}
    head: list[Token] = []
    while tokens[index].text != "(":
        if is_attribute(tokens, index):
            found, index = parse_attribute(tokens, index)
            attributes |= found
        else:
            head.append(tokens[index])
            index += 1
    words = [token.text for token in significant(head) if token.text != "kernel"]
    at = significant(head)[0]
    if len(words) != 2 or words[0] != "void":
        raise refuse(at, f"a kernel is declared 'void name(...)', not '{' '.join(words)}'")
    close = matching(tokens, index)
    kernel = Kernel(
        name=words[1],
        parameters=parse_parameters(tokens[index + 1 : close], at),
        template_declarations=declarations,
        template_names=names,
        max_threads=attributes.get("max_total_threads_per_threadgroup", DEFAULT_MAX_THREADS),
        at=at,
    )
    if kernel.name in module.kernels:
        raise refuse(at, f"a second kernel of the name '{kernel.name}'")
    module.kernels[kernel.name] = kernel
    if not names:
        module.entries.append(EntryPoint(kernel.name, kernel, None, at))
    parameters, _ = strip_attributes(tokens[index + 1 : close])
    body = tokens[close + 1 :]
    if significant(body)[0].text == ";":
        raise refuse(at, "kernels are not declared ahead")
    return [
        *before, *layout(tokens[len(before) : index]), generated(backend.kernel_head(kernel) + "(", at), *parameters,
        generated(")", at), *rewrite_body(body, backend, in_kernel=True),
    ]  # fmt: skip


def _read_template(tokens: list[Token], index: int) -> tuple[int, list[str], list[str]]:
    """Index after ``template <...>``, its parameter declarations and their names."""
    if tokens[index].text != "template":
        return index, [], []
    while tokens[index].text != "<":
        index += 1
    end = matching_angle(tokens, index)
    declarations, names = [], []
    for part in split_commas(tokens[index + 1 : end]):
        sequence = significant(part)
        equals = next((position for position, token in enumerate(sequence) if token.text == "="), len(sequence))
        declarations.append(" ".join(token.text for token in sequence[:equals]))
        names.append(sequence[equals - 1].text)
    return end + 1, declarations, names


def _read_function_constant(tokens: list[Token], module: Module) -> FunctionConstant:
    kept, attributes = strip_attributes(significant(tokens))
    words = [token.text for token in kept if token.text not in ("constant", "const", ";")]
    if len(words) != 2 or words[0] not in _CONSTANT_TYPES:
        raise refuse(kept[0], f"a function constant is one of {', '.join(_CONSTANT_TYPES)}, without an initialiser")
    text = attributes["function_constant"]
    number = str(module.enumerators.get(text.split("::")[-1].strip(), text))
    index = parse_index(kept[0], number, FUNCTION_CONSTANTS, "function constant")
    return FunctionConstant(words[1], words[0], index)


def _read_instantiation(tokens: list[Token], module: Module) -> EntryPoint:
    """``template [[host_name("h")]] [[kernel]] decltype(k<A>) k<A>;``"""
    sequence = significant(tokens)
    kept, attributes = strip_attributes(sequence[1:])
    at = sequence[0]
    if "host_name" not in attributes or "decltype" not in [token.text for token in kept]:
        raise refuse(at, 'write: template [[host_name("h")]] [[kernel]] decltype(k<A>) k<A>;')
    after = matching(kept, next(index for index, token in enumerate(kept) if token.text == "(")) + 1
    name = kept[after].text
    if name not in module.kernels:
        raise refuse(at, f"instantiation of '{name}', which is not a kernel defined above")
    if kept[after + 1].text != "<":
        raise refuse(at, f"instantiation of '{name}' without template arguments")
    arguments = kept[after + 2 : matching_angle(kept, after + 1)]
    kernel = module.kernels[name]
    if len(split_commas(arguments)) != len(kernel.template_names):
        raise refuse(at, f"'{name}' takes {len(kernel.template_names)} template arguments")
    host_name = "".join(attributes["host_name"].split('"')).replace(" ", "")
    if any(entry.host_name == host_name for entry in module.entries):
        raise refuse(at, f"a second kernel of the host name '{host_name}'")
    return EntryPoint(host_name, kernel, " ".join(token.text for token in arguments), at)
