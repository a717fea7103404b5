"""Back end for the cuda device: CUDA C++ against the headers in src/lily_core/device/cuda/msl, for NVRTC."""

from __future__ import annotations

import ast
import contextlib
import operator
import re
from collections.abc import Sequence

from .cpp_output import entry_type, instance, template_head, translated_file
from .kernels import EntryPoint, FunctionConstant, Kernel, Module, Parameter
from .tokens import SubsetError, Token, join, refuse, significant, split_commas, tokenize

_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.floordiv}
_MAX_ARGUMENT_BYTES = 256


class CudaBackend:
    """Kernels become inline functions, each entry point a ``__global__`` function compiled when ``LILY_ENTRY`` is its
    number. Function constants are macros ``LILY_CONSTANT_n``, all of which the compilation defines.
    """

    rewrites_swizzles = True

    def __init__(self, stem: str) -> None:
        self._stem = stem

    def threadgroup_variable(self, type_name: str, name: str, dimensions: str) -> str:
        return f"__shared__ __align__(16) {type_name} {name}{dimensions};"

    def kernel_head(self, kernel: Kernel) -> str:
        return f"{template_head(kernel)}static LILY_FN void {kernel.name}"

    def function_constant(self, constant: FunctionConstant) -> str:
        """A constant of the compilation."""
        value = f"static_cast<{constant.type}>(LILY_CONSTANT_{constant.index})"
        return f"static constexpr {constant.type} {constant.name} = {value};"

    def constant(self, declaration: str) -> str:
        return f"static __device__ const {declaration}"

    def finish(self, body: Sequence[Token], module: Module) -> str:
        entries = "".join(_parameter_types(kernel) for kernel in module.kernels.values())
        entries += "".join(_entry(number, entry, module) for number, entry in enumerate(module.entries))
        return translated_file(self._stem, body, entries)


def index_lines(stem: str, module: Module) -> list[str]:
    """What the device must know of each entry point, one line each, fields separated by tabs.

    Kernel, file, number in the file, largest threadgroup, 1 when it takes threadgroup memory, slots (``0r`` read,
    ``1w`` written, ``2b28`` an argument struct of 28 bytes), function constants (``0:kBits``).
    """
    return [_index_line(stem, number, entry, module) for number, entry in enumerate(module.entries)]


def _index_line(stem: str, number: int, entry: EntryPoint, module: Module) -> str:
    slots = []
    for parameter in _in_slot_order(entry.kernel):
        if parameter.kind == "bytes":
            slots.append(f"{parameter.index}b{argument_bytes(parameter, entry, module)}")
        else:
            slots.append(f"{parameter.index}{'r' if parameter.read_only else 'w'}")
    constants = [f"{constant.index}:{constant.name}" for constant in module.constants_of(entry.kernel)]
    takes_memory = any(parameter.kind == "threadgroup" for parameter in entry.kernel.parameters)
    threads = max_threads(entry, module)
    fields = [entry.host_name, stem, number, threads, int(takes_memory), " ".join(slots), " ".join(constants)]
    return "\t".join(map(str, fields))


def argument_bytes(parameter: Parameter, entry: EntryPoint, module: Module) -> int:
    """The size of an argument struct, whose fields all have 4 bytes."""
    size = 0
    for field in _split_fields(module.structs[parameter.type.split("::")[-1].strip()]):
        for declarator in split_commas(field[1:]):
            count = 1
            for length in re.findall(r"\[([^\]]*)\]", join(declarator)):
                count *= evaluate(length, module.enumerators, entry.at)
            size += 4 * count
    if not 0 < size <= _MAX_ARGUMENT_BYTES:
        raise refuse(entry.at, f"the argument struct has {size} bytes; 1 to {_MAX_ARGUMENT_BYTES} are allowed")
    return size


def _split_fields(body: Sequence[Token]) -> list[list[Token]]:
    fields: list[list[Token]] = [[]]
    for token in body:
        if token.text == ";":
            fields.append([])
        else:
            fields[-1].append(token)
    return [field for field in fields if field]


def max_threads(entry: EntryPoint, module: Module) -> int:
    """The largest threadgroup of an entry point: an expression of numbers, enumerators and template arguments."""
    names = dict(module.enumerators)
    if entry.template_arguments is not None:
        arguments = split_commas(significant(tokenize(entry.template_arguments)))
        for name, argument in zip(entry.kernel.template_names, arguments, strict=True):
            with contextlib.suppress(SubsetError, SyntaxError):  # types have no value
                names[name] = evaluate(join(argument), names, entry.at)
    return evaluate(entry.kernel.max_threads, names, entry.at)


def evaluate(expression: str, names: dict[str, int], at: Token) -> int:
    """The value of an integer expression with + - * / and parentheses."""

    def value(node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        if isinstance(node, ast.Name) and node.id in names:
            return names[node.id]
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return int(_OPERATORS[type(node.op)](value(node.left), value(node.right)))
        raise refuse(at, f"cannot tell the value of '{expression.strip()}'")

    return value(ast.parse(expression.strip(), mode="eval").body)


def _in_slot_order(kernel: Kernel) -> list[Parameter]:
    slots = [parameter for parameter in kernel.parameters if parameter.kind in ("buffer", "bytes")]
    return sorted(slots, key=lambda parameter: parameter.index)


def _parameter_types(kernel: Kernel) -> str:
    """The types of a kernel's buffers and arguments, which may depend on its template arguments."""
    types = "".join(
        f"  typedef {'const ' if parameter.read_only else ''}{parameter.type} P{position};\n"
        for position, parameter in enumerate(kernel.parameters)
        if parameter.kind != "position"
    )
    return f"{template_head(kernel)}struct lily_entry_{kernel.name} {{\n{types}}};\n"


def _entry(number: int, entry: EntryPoint, module: Module) -> str:
    kernel = entry.kernel
    types = entry_type(entry)
    declared = {
        parameter.index: f"const __grid_constant__ {types}::P{position} slot{parameter.index}"
        if parameter.kind == "bytes"
        else f"{types}::P{position}* __restrict__ slot{parameter.index}"
        for position, parameter in enumerate(kernel.parameters)
        if parameter.kind in ("buffer", "bytes")
    }
    parameters = ", ".join(declared[index] for index in sorted(declared))
    passed = ", ".join(_argument(types, position, parameter) for position, parameter in enumerate(kernel.parameters))
    bounds = f"__launch_bounds__({max_threads(entry, module)})"
    return (
        f"#if LILY_ENTRY == {number}\n"
        f'extern "C" __global__ void {bounds} {entry.host_name}({parameters}) {{\n'
        f"  {instance(entry)}({passed});\n}}\n#endif\n"
    )


def _argument(types: str, position: int, parameter: Parameter) -> str:
    if parameter.kind == "position":
        return f"::lily_cuda::position<{parameter.type}>(::lily_cuda::{parameter.attribute}())"
    if parameter.kind == "threadgroup":
        return f"reinterpret_cast<{types}::P{position}*>(::lily_cuda::threadgroup_memory)"
    return f"slot{parameter.index}"
