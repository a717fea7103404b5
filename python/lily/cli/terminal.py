"""Writes answers and notes to the terminal or a pipe."""

from __future__ import annotations

import os
import sys

__all__ = ["AnswerWriter", "remark"]

_DIM, _RESET = "\x1b[2m", "\x1b[0m"
# Control characters in an answer could control the terminal; all but tab and newline are shown as symbols.
_VISIBLE = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"}
_VISIBLE.update({0x7F: 0x2421, **dict.fromkeys(range(128, 160), 65533)})


class AnswerWriter:
    """Writes the pieces of one answer to standard output as they arrive."""

    def __init__(self, *, show_reasoning: bool | None = None) -> None:
        """`show_reasoning`: whether thinking is written, too; by default only on a terminal."""
        self._terminal = sys.stdout.isatty()
        self._show_reasoning = self._terminal if show_reasoning is None else show_reasoning
        self._in_reasoning = False
        self._last = ""

    def write(self, text: str, *, reasoning: bool = False) -> None:
        """Write a piece; a blank line separates thinking from the answer."""
        if reasoning and not self._show_reasoning:
            return
        self._enter(reasoning)
        self._last = text
        sys.stdout.write(text.translate(_VISIBLE) if self._terminal else text)
        sys.stdout.flush()

    def finish(self) -> None:
        """End the answer's last line."""
        if self._in_reasoning and _styled(self._terminal):
            sys.stdout.write(_RESET)
        if self._last and not self._last.endswith("\n"):
            sys.stdout.write("\n")
        sys.stdout.flush()

    def _enter(self, reasoning: bool) -> None:
        if reasoning == self._in_reasoning:
            return
        self._in_reasoning = reasoning
        if _styled(self._terminal):
            sys.stdout.write(_DIM if reasoning else _RESET)
        if not reasoning:
            sys.stdout.write("\n" if self._last.endswith("\n") else "\n\n")


def remark(text: str, *, piped: bool = False) -> None:
    """Write a dimmed line to standard error, if that is a terminal or `piped` asks for it anyway."""
    terminal = sys.stderr.isatty()
    if terminal or piped:
        sys.stderr.write(f"{_DIM}{text}{_RESET}\n" if _styled(terminal) else f"{text}\n")
        sys.stderr.flush()


def _styled(terminal: bool) -> bool:
    return terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
