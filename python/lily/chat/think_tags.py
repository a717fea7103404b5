"""The tags of thinking blocks, and where they are tags rather than text."""

from __future__ import annotations

import re

from lily.checks.arguments import check_text

__all__ = ["CLOSE_THINK", "OPEN_THINK", "end_of_thinking", "line_ends", "thinking_is_open"]

OPEN_THINK, CLOSE_THINK = "<think>", "</think>"
_LINE_END = re.compile(r"[ \t]{0,80}(?:\r?\n)?")


def thinking_is_open(prompt: str) -> bool:
    """Whether the output that follows a rendered prompt begins inside a thinking block.

    The opening tag is part of the prompt and never appears in the output, so the end of the prompt decides.
    """
    check_text("prompt", prompt)
    return prompt.rstrip().endswith(OPEN_THINK)


def line_ends(text: str, at: int, *, final: bool) -> bool | None:
    """Whether nothing follows a tag on its line; None if more text is needed to decide."""
    match = _LINE_END.match(text, at)
    if match is None or match[0].endswith("\n"):
        return match is not None
    if text[match.end() :] not in ("", "\r"):
        return False
    return True if final else None


def end_of_thinking(text: str, searched: int, *, final: bool) -> tuple[int, bool]:
    """Where the text of a thinking block ends, as far as certain, and whether its closing tag stands there.

    No closing tag begins in the first `searched` characters.
    """
    found = text.find(CLOSE_THINK, searched)
    if found >= 0:
        return found, True
    end = len(text)
    if not final:
        partial = text.rfind("<", max(0, end - len(CLOSE_THINK) + 1))
        if partial >= 0 and CLOSE_THINK.startswith(text[partial:]):
            end = partial
    return end, False
