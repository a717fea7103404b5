"""Back end for the lint: the source with its address spaces, for clang to check but not to run."""

from __future__ import annotations

from collections.abc import Sequence

from .kernels import FunctionConstant, Kernel, Module
from .tokens import Token, join


class LintBackend:
    """Keeps the source, except for what only Metal's compiler can parse."""

    rewrites_swizzles = False

    def threadgroup_variable(self, type_name: str, name: str, dimensions: str) -> str:
        """A reference into the threadgroup space, whose variables clang knows in OpenCL kernels only."""
        alias = f"lily_type_{name}"
        return (
            f"typedef {type_name} {alias}{dimensions}; "
            f"threadgroup {alias}& {name} = lily_threadgroup_variable<{alias}>();"
        )

    def kernel_head(self, kernel: Kernel) -> str:
        template = f"template <{', '.join(kernel.template_declarations)}> " if kernel.template_names else ""
        return f"{template}void {kernel.name}"

    def function_constant(self, constant: FunctionConstant) -> str:
        return f"extern constant {constant.type} {constant.name};"

    def constant(self, declaration: str) -> str:
        return f"constant {declaration}"

    def finish(self, body: Sequence[Token], module: Module) -> str:
        """The source and every instantiation, so that templates are checked as they are used."""
        text = join(body)
        kept = "\n".join(line for line in text.split("\n") if not line.lstrip().startswith("#include"))
        instantiations = "".join(
            f'#line {entry.at.line} "{entry.at.file}"\n'
            f"template decltype({entry.kernel.name}<{entry.template_arguments}>) "
            f"{entry.kernel.name}<{entry.template_arguments}>;\n"
            for entry in module.entries
            if entry.template_arguments is not None
        )
        return f'#include "lily_msl.h"\n{kept}\n{instantiations}'
