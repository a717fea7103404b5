"""A parser's notes on calls that may be mere text, and on tags that begin no call."""

from __future__ import annotations

from dataclasses import dataclass

from lily.chat.call_reader import ReadCall

__all__ = ["Draft", "NoCalls"]


@dataclass
class Draft:
    """Calls that count only if the turn ends after them, and their text."""

    calls: list[ReadCall]
    text: str
    start: int  # characters of the output before it
    in_thinking: bool


@dataclass(frozen=True)
class NoCalls:
    """A run of tags whose first began no call; then neither do the others."""

    last: int  # characters of the output before the last one
    only_known: bool
    strict: bool  # how the first was read

    def hold(self, at: int, only_known: bool, strict: bool) -> bool:
        """Whether a tag at a place is known to begin no call when read this way."""
        return at <= self.last and only_known >= self.only_known and strict >= self.strict
