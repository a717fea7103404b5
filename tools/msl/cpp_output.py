"""What the back ends that make C++ share: address spaces erased, and the frame of a translated file."""

from __future__ import annotations

from collections.abc import Sequence

from .kernels import EntryPoint, Kernel
from .tokens import Token, join

_ERASED = {"device": "", "thread": "", "threadgroup": "", "kernel": "", "constant": "const"}


def template_head(kernel: Kernel) -> str:
    """``template <...> `` of a kernel that has parameters, else nothing."""
    return f"template <{', '.join(kernel.template_declarations)}> " if kernel.template_names else ""


def instance(entry: EntryPoint) -> str:
    """The kernel's name, with the template arguments of one entry point."""
    arguments = f"<{entry.template_arguments}>" if entry.template_arguments is not None else ""
    return f"{entry.kernel.name}{arguments}"


def entry_type(entry: EntryPoint) -> str:
    """The type that a back end makes for one entry point of a kernel."""
    return f"lily_entry_{instance(entry)}"


def translated_file(stem: str, body: Sequence[Token], entries: str) -> str:
    """The kernels of a file in a namespace of their own, followed by the code of the entry points."""
    for token in body:
        if token.kind == "name" and token.text in _ERASED:
            token.text = _ERASED[token.text]
    text = "\n".join(line for line in join(body).split("\n") if not line.lstrip().startswith("#include"))
    return (
        '#include "lily_msl.h"\n'
        f"namespace metal {{ namespace lily_kernels_{stem} {{\n{text}\n"
        f'#line 1 "entries of {stem}"\n{entries}}} }}\n'
    )
