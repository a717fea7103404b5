"""Reads the description and the parameters from a docstring in NumPy, Google, Sphinx or plain style."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["FunctionText", "parse_docstring"]

_SECTIONS = frozenset(
    [
        *("args", "arguments", "parameters", "params", "keyword args", "other parameters", "attributes", "raises"),
        *("returns", "return", "yields", "yield", "warns", "warnings", "notes", "note", "examples", "example", "todo"),
        *("see also", "references"),
    ]
)
_PARAMETER_SECTIONS = ("args", "arguments", "parameters", "params", "keyword args", "other parameters")
_GOOGLE_PARAMETER = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")
_NUMPY_PARAMETER = re.compile(r"\*{0,2}(\w+(?:\s*,\s*\w+)*)\s*(?::.*)?")
_SPHINX_FIELD = re.compile(r":(\w+)(?:\s+([^:]*))?:\s*(.*)")


@dataclass(frozen=True)
class FunctionText:
    """A docstring's texts: for the function, and for its parameters by name."""

    description: str = ""
    parameters: dict[str, str] = field(default_factory=dict)


def parse_docstring(docstring: str) -> FunctionText:
    """Read a docstring whose common indentation is removed, as ``inspect.getdoc`` returns it."""
    lines = docstring.expandtabs().splitlines()
    description: list[str] = []
    parameters: dict[str, str] = {}
    at = 0
    while at < len(lines):
        section, numpy_style = _section_at(lines, at)
        if section is None:
            sphinx = _SPHINX_FIELD.fullmatch(lines[at])
            if sphinx is None:
                description.append(lines[at])
                at += 1
                continue
            end = _end_of_indented(lines, at + 1)
            if sphinx[1] in ("param", "parameter", "arg", "argument") and sphinx[2]:
                parameters[sphinx[2].split()[-1]] = _joined([sphinx[3], *lines[at + 1 : end]])
            at = end
            continue
        start = at + (2 if numpy_style else 1)
        at = _end_of_section(lines, start, numpy_style)
        if section in _PARAMETER_SECTIONS:
            read = _numpy_parameters if numpy_style else _google_parameters
            parameters.update(read(lines[start:at]))
    return FunctionText("\n".join(description).strip(), parameters)


def _section_at(lines: Sequence[str], at: int) -> tuple[str | None, bool]:
    """The name of the section whose heading is at a line, in small letters, and whether it is in NumPy style."""
    title = lines[at].strip().lower()
    if at + 1 < len(lines) and title and re.fullmatch(r"-{3,}", lines[at + 1].strip()):
        return title, True
    name = title.removesuffix(":")
    is_heading = title.endswith(":") and name in _SECTIONS and not lines[at].startswith(" ")
    return (name, False) if is_heading else (None, False)


def _end_of_section(lines: Sequence[str], start: int, numpy_style: bool) -> int:
    if not numpy_style:
        return _end_of_indented(lines, start)
    return next((at for at in range(start, len(lines)) if _section_at(lines, at)[1]), len(lines))


def _end_of_indented(lines: Sequence[str], start: int) -> int:
    return next((at for at in range(start, len(lines)) if lines[at] and not lines[at].startswith(" ")), len(lines))


def _numpy_parameters(lines: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for at, line in enumerate(lines):
        match = _NUMPY_PARAMETER.fullmatch(line.rstrip())
        if match is None or line.startswith(" "):
            continue
        text = _joined(lines[at + 1 : _end_of_indented(lines, at + 1)])
        found.update({name.strip(): text for name in match[1].split(",") if text})
    return found


def _google_parameters(lines: Sequence[str]) -> dict[str, str]:
    indentation = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    found: dict[str, str] = {}
    name = ""
    for line in lines:
        match = _GOOGLE_PARAMETER.fullmatch(line.strip())
        if match is not None and len(line) - len(line.lstrip()) == indentation:
            name = match[1]
            found[name] = match[2].strip()
        elif name:
            found[name] = _joined([found[name], line])
    return found


def _joined(lines: Sequence[str]) -> str:
    return " ".join(line.strip() for line in lines if line.strip())
