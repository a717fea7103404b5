"""What the translator knows of a source: kernels, their parameters, entry points and function constants."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from .tokens import Token, refuse, significant, split_commas, strip_attributes

ADDRESS_SPACES = ("device", "constant", "threadgroup", "thread")
_POSITIONS = {
    "thread_position_in_threadgroup", "threadgroup_position_in_grid", "threadgroups_per_grid",
    "threads_per_threadgroup", "thread_position_in_grid", "threads_per_grid",
}  # fmt: skip
_INDICES = {
    "thread_index_in_threadgroup", "thread_index_in_simdgroup", "simdgroup_index_in_threadgroup",
    "simdgroups_per_threadgroup", "threads_per_simdgroup",
}  # fmt: skip
BUFFER_SLOTS = 31
FUNCTION_CONSTANTS = 32
DEFAULT_MAX_THREADS = "1024"


@dataclass
class Parameter:
    """One kernel parameter. ``kind``: buffer, bytes (an argument struct), threadgroup or position."""

    name: str
    kind: str
    type: str
    index: int = 0
    read_only: bool = False
    attribute: str = ""


@dataclass
class Kernel:
    """A kernel function, perhaps a template."""

    name: str
    parameters: list[Parameter]
    template_declarations: list[str]
    template_names: list[str]
    max_threads: str
    at: Token


@dataclass
class EntryPoint:
    """A kernel that a host can ask for by name: a plain kernel, or one instantiation of a template."""

    host_name: str
    kernel: Kernel
    template_arguments: str | None
    at: Token


@dataclass
class FunctionConstant:
    name: str
    type: str
    index: int


@dataclass
class Module:
    """All of one source file."""

    kernels: dict[str, Kernel] = field(default_factory=dict)
    entries: list[EntryPoint] = field(default_factory=list)
    constants: list[FunctionConstant] = field(default_factory=list)
    uses: dict[str, set[str]] = field(default_factory=dict)  # top-level name -> names its definition mentions
    structs: dict[str, list[Token]] = field(default_factory=dict)  # name -> tokens of the body
    enumerators: dict[str, int] = field(default_factory=dict)

    def add_enumerators(self, body: list[Token]) -> None:
        """Notes the values of an enum, as far as they are written as numbers."""
        for part in split_commas(body):
            if len(part) == 3 and part[1].text == "=" and part[2].text.isdigit():
                self.enumerators[part[0].text] = int(part[2].text)

    def reachable(self, name: str) -> set[str]:
        """All top-level names that the definition of ``name`` leads to."""
        found: set[str] = set()
        waiting = [name]
        while waiting:
            current = waiting.pop()
            if current in found:
                continue
            found.add(current)
            waiting += [used for used in self.uses.get(current, ()) if used in self.uses]
        return found

    def constants_of(self, kernel: Kernel) -> list[FunctionConstant]:
        """The function constants that the kernel, or anything it calls, mentions."""
        mentioned: set[str] = set()
        for name in self.reachable(kernel.name):
            mentioned |= self.uses.get(name, set())
        return [constant for constant in self.constants if constant.name in mentioned]


def parse_index(token: Token, text: str, limit: int, what: str) -> int:
    """The number in an attribute such as ``[[buffer(3)]]``."""
    try:
        index = int(text, 0)
    except ValueError:
        raise refuse(token, f"the index of a {what} must be a plain number, not '{text}'") from None
    if not 0 <= index < limit:
        raise refuse(token, f"{what} index {index}: 0 to {limit - 1} are allowed")
    return index


def parse_parameters(tokens: list[Token], at: Token) -> list[Parameter]:
    """The parameters of a kernel, with the rules on them enforced."""
    parameters = []
    for part in split_commas(tokens):
        bare, attributes = strip_attributes(part)
        if words := significant(bare):
            parameters.append(_parse_parameter(words, attributes))
    _check_unique(parameters, at)
    _check_component_counts(parameters, at)
    return parameters


def _parse_parameter(tokens: list[Token], attributes: dict[str, str]) -> Parameter:
    name, texts = tokens[-1].text, [token.text for token in tokens[:-1]]
    if "*" in texts or "&" in texts:
        return _parse_pointer(tokens, name, texts, attributes)
    known = [attribute for attribute in attributes if attribute in _POSITIONS | _INDICES]
    if len(known) != 1 or len(attributes) != 1:
        raise refuse(tokens[0], f"parameter '{name}': unsupported attribute {sorted(attributes) or '(none)'}")
    if known[0] in _INDICES and texts != ["uint"]:
        raise refuse(tokens[0], f"parameter '{name}' with [[{known[0]}]] must be a uint")
    if known[0] in _POSITIONS and texts not in (["uint"], ["uint2"], ["uint3"]):
        raise refuse(tokens[0], f"parameter '{name}' with [[{known[0]}]] must be a uint, uint2 or uint3")
    return Parameter(name, "position", texts[0], attribute=known[0])


def _parse_pointer(tokens: list[Token], name: str, texts: list[str], attributes: dict[str, str]) -> Parameter:
    at = tokens[0]
    spaces = [text for text in texts if text in ADDRESS_SPACES]
    if len(spaces) != 1 or texts.count("*") + texts.count("&") != 1 or texts[-1] not in "*&":
        raise refuse(at, f"parameter '{name}' must be a pointer or reference with exactly one address space")
    space, reference = spaces[0], texts[-1] == "&"
    base = " ".join(text for text in texts[:-1] if text not in (*ADDRESS_SPACES, "const"))
    if space == "threadgroup":
        if reference or set(attributes) != {"threadgroup"}:
            raise refuse(at, f"threadgroup parameter '{name}' must be a pointer with [[threadgroup(0)]]")
        return Parameter(name, "threadgroup", base, parse_index(at, attributes["threadgroup"], 1, "threadgroup"))
    if space == "thread":
        raise refuse(at, f"parameter '{name}': a kernel takes no thread pointers")
    if set(attributes) != {"buffer"}:
        raise refuse(at, f"parameter '{name}' needs an explicit [[buffer(n)]]")
    index = parse_index(at, attributes["buffer"], BUFFER_SLOTS, "buffer")
    if space == "constant":
        if "const" in texts:
            raise refuse(at, f"parameter '{name}': write 'constant {base}', without 'const'")
        return Parameter(name, "bytes" if reference else "buffer", base, index, read_only=True)
    if reference:
        raise refuse(at, f"parameter '{name}': a device buffer is a pointer; 'constant T&' is an argument struct")
    return Parameter(name, "buffer", base, index, read_only="const" in texts)


def _check_unique(parameters: list[Parameter], at: Token) -> None:
    seen: dict[int, str] = {}
    for parameter in parameters:
        if parameter.kind not in ("buffer", "bytes"):
            continue
        if parameter.index in seen:
            raise refuse(at, f"'{parameter.name}' and '{seen[parameter.index]}' share buffer index {parameter.index}")
        seen[parameter.index] = parameter.name
    for kind in ("bytes", "threadgroup"):
        if sum(parameter.kind == kind for parameter in parameters) > 1:
            raise refuse(at, f"a kernel takes at most one {kind} parameter")


def _check_component_counts(parameters: list[Parameter], at: Token) -> None:
    counts = {re.sub(r"\D", "", parameter.type) for parameter in parameters if parameter.attribute in _POSITIONS}
    if len(counts) > 1:
        raise refuse(at, "all position and size attributes of a kernel must have the same number of components")
