"""Back end for the sim device: C++ against the headers in src/lily_core/device/sim/msl."""

from __future__ import annotations

from collections.abc import Sequence

from .cpp_output import entry_type, template_head, translated_file
from .kernels import EntryPoint, FunctionConstant, Kernel, Module, Parameter
from .tokens import Token


class SimBackend:
    """Kernels become inline functions, entry points a table that the executor reads."""

    rewrites_swizzles = True

    def __init__(self, stem: str) -> None:
        self._stem = stem

    def threadgroup_variable(self, type_name: str, name: str, dimensions: str) -> str:
        """A reference into the threadgroup's memory, found by the address of a marker."""
        return f"LILY_THREADGROUP_VARIABLE({name}, ({dimensions}), {type_name});"

    def kernel_head(self, kernel: Kernel) -> str:
        return f"{template_head(kernel)}static inline void {kernel.name}"

    def function_constant(self, constant: FunctionConstant) -> str:
        """An object that converts to the value given for the launch."""
        return f"static const ::lily_sim::FunctionConstant<{constant.type}, {constant.index}> {constant.name} {{}};"

    def constant(self, declaration: str) -> str:
        return f"static const {declaration}"

    def finish(self, body: Sequence[Token], module: Module) -> str:
        entries = "".join(_entry_struct(kernel) for kernel in module.kernels.values())
        entries += "".join(_entry_tables(index, entry, module) for index, entry in enumerate(module.entries))
        return translated_file(self._stem, body, entries) + self._entry_list(module)

    def _entry_list(self, module: Module) -> str:
        scope = f"metal::lily_kernels_{self._stem}"
        rows = "".join(_entry_row(scope, index, entry) for index, entry in enumerate(module.entries))
        return (
            f"extern const lily_sim::EntryList lily_entries_{self._stem};\n"
            f"static const lily_sim::Entry lily_rows[] = {{\n{rows}  {{}}}};\n"
            f"const lily_sim::EntryList lily_entries_{self._stem} = {{lily_rows, {len(module.entries)}}};\n"
        )


def registry(stems: Sequence[str]) -> str:
    """The source file that lists the entry points of every translated file."""
    declarations = "".join(f"extern const lily_sim::EntryList lily_entries_{stem};\n" for stem in stems)
    pointers = ", ".join(f"&lily_entries_{stem}" for stem in stems)
    return (
        '#include "runtime/abi.h"\n'
        f"{declarations}namespace lily_sim {{\n"
        f"extern const EntryList* const entry_lists[] = {{{pointers + ', ' if stems else ''}nullptr}};\n"
        "}\n"
    )


def _argument(position: int, parameter: Parameter) -> str:
    if parameter.kind == "position":
        return f"::lily_sim::position<{parameter.type}>(::lily_sim::{parameter.attribute}())"
    if parameter.kind == "threadgroup":
        return f"::lily_sim::threadgroup_argument<P{position}>()"
    call = f"::lily_sim::buffer_argument<P{position}>({parameter.index})"
    return f"*{call}" if parameter.kind == "bytes" else call


def _entry_struct(kernel: Kernel) -> str:
    """Types of the parameters, and the function that calls the kernel with the launch's arguments."""
    lines = [f"{template_head(kernel)}struct lily_entry_{kernel.name} {{\n"]
    for position, parameter in enumerate(kernel.parameters):
        if parameter.kind == "position":
            continue
        constness = "const " if parameter.read_only else ""
        lines.append(f"  typedef {constness}{parameter.type} P{position};\n")
        if parameter.kind == "bytes":
            lines.append(f'  static_assert(sizeof(P{position}) <= 256, "argument structs are at most 256 bytes");\n')
    template_arguments = f"<{', '.join(kernel.template_names)}>" if kernel.template_names else ""
    arguments = ", ".join(_argument(position, parameter) for position, parameter in enumerate(kernel.parameters))
    lines.append(f"  static void run() {{ {kernel.name}{template_arguments}({arguments}); }}\n")
    lines.append(f"  static constexpr uint max_threads = {kernel.max_threads};\n}};\n")
    return "".join(lines)


def _entry_tables(index: int, entry: EntryPoint, module: Module) -> str:
    """The slots and function constants of one entry point."""
    slots = ""
    for position, parameter in enumerate(entry.kernel.parameters):
        if parameter.kind in ("buffer", "bytes"):
            size = f"sizeof(Type_{index}::P{position})" if parameter.kind == "bytes" else "0"
            written = "false" if parameter.read_only else "true"
            kind = f"::lily_sim::SlotKind::{parameter.kind}"
            slots += f'{{{parameter.index}, {kind}, {written}, {size}, "{parameter.name}"}}, '
    constants = "".join(f'{{{constant.index}, "{constant.name}"}}, ' for constant in module.constants_of(entry.kernel))
    return (
        f"typedef {entry_type(entry)} Type_{index};\n"
        f"static const ::lily_sim::Slot slots_{index}[] = {{{slots}{{}}}};\n"
        f"static const ::lily_sim::Constant constants_{index}[] = {{{constants}{{}}}};\n"
    )


def _entry_row(scope: str, index: int, entry: EntryPoint) -> str:
    takes_threadgroup = any(parameter.kind == "threadgroup" for parameter in entry.kernel.parameters)
    return (
        f'  {{"{entry.host_name}", &{scope}::Type_{index}::run, "{entry.at.file}", {entry.at.line}, '
        f"{scope}::Type_{index}::max_threads, {str(takes_threadgroup).lower()}, "
        f"{scope}::slots_{index}, {scope}::constants_{index}}},\n"
    )
