"""The reflection of a source: what a host must know to bind its kernels."""

from __future__ import annotations

from typing import Any

from .kernels import EntryPoint, Module, Parameter


def reflect(module: Module) -> dict[str, Any]:
    """The kernels by host name, as plain data for JSON."""
    return {"kernels": {entry.host_name: _reflect_entry(entry, module) for entry in module.entries}}


def _reflect_entry(entry: EntryPoint, module: Module) -> dict[str, Any]:
    kernel = entry.kernel
    return {
        "function": kernel.name,
        "template_arguments": entry.template_arguments,
        "file": entry.at.file,
        "line": entry.at.line,
        "max_total_threads": kernel.max_threads,
        "buffers": [
            _slot(parameter) | {"written": not parameter.read_only}
            for parameter in kernel.parameters
            if parameter.kind == "buffer"
        ],
        "bytes": [_slot(parameter) for parameter in kernel.parameters if parameter.kind == "bytes"],
        "threadgroup": [parameter.index for parameter in kernel.parameters if parameter.kind == "threadgroup"],
        "function_constants": [
            {"index": constant.index, "name": constant.name, "type": constant.type}
            for constant in module.constants_of(kernel)
        ],
    }


def _slot(parameter: Parameter) -> dict[str, Any]:
    return {"index": parameter.index, "name": parameter.name, "type": parameter.type}
