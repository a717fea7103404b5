"""Follows Markdown while it is written, and tells whether its end is inside code."""

from __future__ import annotations

import re

__all__ = ["MarkdownCode"]

_PARTS = re.compile(r"`+|~+|\n|[^`~\n]+")
_SPECIAL = re.compile(r"[`~\n\\]")
_CONTAINERS = re.compile(r"(?:[ \t]|>|[-*+][ \t]|\d{1,9}[.)][ \t])*")  # quotes and lists that a fence may stand in
_PREFIX = re.compile(_CONTAINERS.pattern + r"(?:[-*+]|\d{1,9}[.)]?)?")  # the last one perhaps incomplete
_ITEM = re.compile(r"[ \t>]*(?:[-*+]|\d{1,9}[.)])[ \t]")
_LONGEST_PREFIX = 256  # characters
_FENCE = 3  # characters, at least
_TAB = 4  # columns


class MarkdownCode:
    """Fences of ``` and ~~~, and inline code.

    A fence stands alone on its line, except for quote and list markers before it and, if it opens, an info string after
    it. A fence of the same character that is at least as long closes it. Inline code is closed by as many backticks as
    have opened it, within the same paragraph.
    """

    def __init__(self) -> None:
        self._fence: tuple[str, int] | None = None  # character, length
        self._inline = 0  # backticks that have opened inline code
        self._line = ""  # the beginning of the line, as long as a fence or a tag may follow it
        self._only_containers = True  # all of the line is in `_line`
        self._blank = True  # the line, so far
        self._fence_line: tuple[str, int] | None = None  # a fence that this line opens or closes, unless more follows
        self._run = ("", 0)  # backticks or tildes at the end and how many, perhaps more to come
        self._escaped = False  # the character before them is a backslash
        self._list_is_open = False  # an indented line may belong to its last item

    @property
    def in_fence(self) -> bool:
        """Whether the place is in a fenced block."""
        self._settle()
        return self._fence is not None

    @property
    def in_inline_code(self) -> bool:
        """Whether backticks have opened inline code that may be closed after this place."""
        self._settle()
        return self._inline > 0

    @property
    def begins_line(self) -> bool:
        """Whether only an indentation too small for code stands before the place on its line."""
        self._settle()
        return self._only_containers and not self._line.strip(" ") and len(self._line) < _TAB

    @property
    def in_list(self) -> bool:
        """Whether the place is in a list item, judging by its indentation."""
        self._settle()
        return self._list_is_open and self._line[:1] in (" ", "\t")

    def begin_line(self) -> None:
        """Continue as at the beginning of a paragraph."""
        self._settle()
        self._inline = 0
        self._new_line()

    def leave_fence(self) -> None:
        """Forget the fence: it was not one."""
        self._settle()
        self._fence = None

    def feed(self, text: str) -> None:
        """Continue after the text."""
        in_line = not (self._only_containers or self._blank or self._run[1] or self._fence_line)
        if in_line and _SPECIAL.search(text) is None:
            self._escaped = False
            return
        for match in _PARTS.finditer(text):
            part = match[0]
            if part[0] in "`~":
                if self._run[0] != part[0]:
                    self._settle()
                self._run = (part[0], self._run[1] + len(part))
                continue
            self._settle()
            if part == "\n":
                self._end_line()
            else:
                self._pass(part)
            backslashes = len(part) - len(part.rstrip("\\"))
            self._escaped = (backslashes + (self._escaped and backslashes == len(part))) % 2 == 1

    def _pass(self, part: str) -> None:
        """Text without backticks, tildes and line ends."""
        blank = not part.strip()
        if not blank and self._fence_line is not None and self._fence is not None:
            self._fence_line = None  # something follows it: it closes nothing
        self._blank = self._blank and blank
        if self._only_containers:
            self._line += part[:_LONGEST_PREFIX]
            self._only_containers = len(self._line) < _LONGEST_PREFIX and _PREFIX.fullmatch(self._line) is not None

    def _settle(self) -> None:
        """The run of backticks or tildes is complete."""
        character, length = self._run
        if not length:
            return
        self._run = ("", 0)
        escaped, self._escaped = self._escaped, False
        at_line_start = self._only_containers and _CONTAINERS.fullmatch(self._line) is not None
        self._only_containers = self._blank = False
        if self._fence is not None:
            closes = at_line_start and character == self._fence[0] and length >= self._fence[1]
            self._fence_line = (character, length) if closes else None
            return
        if at_line_start and length >= _FENCE and not escaped:
            self._fence_line = (character, length)
            if character == "`":
                self._inline = length
            return
        if character == "~":
            return
        if self._fence_line is not None and self._fence_line[0] == "`":
            self._fence_line = None  # backticks in the info string: it was inline code
        if self._inline == 0:
            self._inline = length - escaped
        elif self._inline == length:
            self._inline = 0

    def _end_line(self) -> None:
        if not self._blank and self._line[:1] not in (" ", "\t"):
            self._list_is_open = False
        self._list_is_open = self._list_is_open or _ITEM.match(self._line) is not None
        if self._fence_line is not None:
            self._fence = self._fence_line if self._fence is None else None
            self._inline = 0
        elif self._blank:
            self._inline = 0
        self._new_line()

    def _new_line(self) -> None:
        self._line, self._only_containers, self._blank, self._fence_line = "", True, True, None
