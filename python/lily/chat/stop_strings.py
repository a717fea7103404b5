"""Ends a stream of text at the first stop string, however the text is split; the string itself is never passed on."""

from __future__ import annotations

from collections.abc import Iterable

from lily.checks.arguments import as_items
from lily.checks.quoting import quoted
from lily.errors import InvalidArgumentError

__all__ = ["StopStrings", "as_stop_strings"]


def as_stop_strings(stop: str | Iterable[str] | None) -> tuple[str, ...]:
    """The stop strings as a tuple.

    Raises
    ------
    InvalidArgumentError
        One is not a string, or empty.
    """
    if stop is None:
        return ()
    strings = (stop,) if isinstance(stop, str) else tuple(as_items("stop", stop, "a string or a list of strings"))
    for string in strings:
        if not isinstance(string, str) or not string:
            raise InvalidArgumentError(f"stop must be non-empty strings, not {quoted(string)}")
    return strings


class StopStrings:
    """Filter for one stream of text. The string that is complete first ends it; of several, the longest."""

    def __init__(self, strings: Iterable[str]) -> None:
        self._strings = sorted(set(strings), key=len, reverse=True)
        self._held = ""
        self.matched: str | None = None  #: the string that ended the stream

    def feed(self, text: str) -> str:
        """Return the text that may pass now: nothing that could still turn out to be part of a stop string."""
        if self.matched is not None:
            return ""
        text = self._held + text
        found = ((text.find(string), string) for string in self._strings)
        matches = [(place + len(string), -len(string), string) for place, string in found if place >= 0]
        if matches:
            end, _, self.matched = min(matches)
            self._held = ""
            return text[: end - len(self.matched)]
        keep = self._partial_length(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """Return what was held back; the stream is over."""
        text, self._held = self._held, ""
        return text

    def _begins(self, text: str) -> bool:
        return any(len(text) < len(string) and string.startswith(text) for string in self._strings)

    def _partial_length(self, text: str) -> int:
        longest = len(self._strings[0]) - 1 if self._strings else 0
        for length in range(min(longest, len(text)), 0, -1):
            if self._begins(text[len(text) - length :]):
                return length
        return 0
