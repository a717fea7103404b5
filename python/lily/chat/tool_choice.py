"""Which tools a turn may, must or must not call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from lily.checks.quoting import quoted
from lily.errors import InvalidArgumentError

__all__ = ["ToolChoice", "as_tool_choice"]

_Mode = Literal["auto", "none", "required"]


@dataclass(frozen=True)
class ToolChoice:
    """`names` are the tools that may be called; with "required", there must be at least one call."""

    mode: _Mode
    names: tuple[str, ...] = ()


def as_tool_choice(choice: str | Mapping[str, Any] | None, names: Sequence[str]) -> ToolChoice:
    """The tool choice of OpenAI's or Anthropic's form.

    Parameters
    ----------
    choice
        "auto" (also None), "none", "required" (or "any"), or a mapping that names one tool, such as
        ``{"type": "function", "function": {"name": ...}}``.
    names
        The tools that there are.

    Raises
    ------
    InvalidArgumentError
        It is none of these, or names an unknown tool.
    """
    name: Any = None
    mode: Any = choice
    if isinstance(choice, Mapping):
        function = choice.get("function")
        name = function.get("name") if isinstance(function, Mapping) else choice.get("name")
        mode = choice.get("type", "") if name is None else "required"
    mode = {None: "auto", "any": "required"}.get(mode, mode) if isinstance(mode, (str, type(None))) else mode
    if not isinstance(mode, str) or mode not in get_args(_Mode):
        raise InvalidArgumentError(
            f'tool_choice must be "auto", "none", "required" or name a tool, not {quoted(choice)}'
        )
    if name is not None and (not isinstance(name, str) or name not in names):
        raise InvalidArgumentError(f"tool_choice names {quoted(name)}, but the tools are {', '.join(names) or 'none'}")
    if mode == "required" and not names:
        raise InvalidArgumentError("tool_choice requires a call, but there are no tools")
    return ToolChoice(cast(_Mode, mode) if names else "none", tuple(names) if name is None else (name,))
