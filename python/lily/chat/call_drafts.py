"""What a parser notes about calls that may be talk, and about tags that begin no call."""

from __future__ import annotations

from dataclasses import dataclass

from lily.chat.call_reader import ReadCall

__all__ = ["Draft", "NoCalls"]


@dataclass
class Draft:
    """Calls that count only if the turn ends behind them, and their text."""

    calls: list[ReadCall]
    text: str
    start: int  # characters of the output before it
    in_thinking: bool


@dataclass(frozen=True)
class NoCalls:
    """Tags that follow one another and of which the first was found to begin no call: so do the others."""

    last: int  # characters of the output before the last one
    only_known: bool
    strict: bool  # how the first was read

    def hold(self, at: int, only_known: bool, strict: bool) -> bool:
        """Whether a tag at a place begins no call when it is read like this."""
        return at <= self.last and only_known >= self.only_known and strict >= self.strict
