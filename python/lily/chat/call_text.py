"""Looks for tags in the text of a call that is still growing."""

from __future__ import annotations

from lily.chat.call_tags import Tag, TextBuffer, begins_line, is_partial_tag, tag_at

__all__ = ["CallText"]

_LONGEST_FENCE = 32  # characters of the line that opens one
_PLACES = 8
_LOOK_AHEAD = 257  # characters; one more than the longest tag


class CallText:
    """The part of a buffer that a reader may see, and whether more of it can come."""

    def __init__(self, buffer: TextBuffer) -> None:
        self.buffer = buffer
        self.end = 0
        self.final = False
        self._spaces: dict[int, int] = {}  # the latest places, and how far white space extends from each

    def slice(self, start: int, end: int) -> str:
        """Some of the text."""
        return self.buffer.text[start:end]

    def character(self, at: int) -> str:
        """One character; nothing at the end."""
        return self.buffer.text[at] if at < self.end else ""

    def skip_space(self, at: int) -> int:
        """The next place without white space, perhaps the end."""
        found = self._spaces.get(at, at)
        text, end = self.buffer.text, self.end
        while found < end and text[found].isspace():
            found += 1
        if len(self._spaces) > _PLACES:
            self._spaces.clear()
        self._spaces[at] = found
        return found

    def skip_fence(self, at: int) -> int | None:
        """The next place after white space and an opening Markdown fence; None if not known yet."""
        at = self.skip_space(at)
        opening = self.slice(at, min(at + _LONGEST_FENCE, self.end))
        if not opening.startswith("```"):
            return None if opening in ("`", "``") and not self.final else at
        line, ended, _ = opening.partition("\n")
        if ended:
            return self.skip_space(at + len(line)) if line[3:].strip().isalnum() or not line[3:].strip() else at
        return None if len(opening) < _LONGEST_FENCE and not self.final else at

    def tag_at(self, at: int) -> Tag | None:
        """The complete tag at a place."""
        return tag_at(self.buffer.text, at, self.end)

    def may_be_tag(self, at: int) -> bool:
        """Whether the text from a place on may become a tag; also true at the end."""
        return at >= self.end or (
            self.buffer.text[at] == "<" and is_partial_tag(self.slice(at, min(at + _LOOK_AHEAD, self.end)))
        )

    def find_tag(self, at: int) -> tuple[Tag | None, int]:
        """The next complete tag, and a place before which there is no tag."""
        text, end = self.buffer.text, self.end
        while (found := text.find("<", at, end)) >= 0:
            tag = tag_at(text, found, end)
            if tag is not None:
                return tag, found
            if not self.final and self.may_be_tag(found):
                return None, found
            at = found + 1
        return None, end

    def follower(self, at: int) -> Tag | None:
        """What follows white space: a tag, or one of kind "text" or "end"; None if not known yet."""
        at = self.skip_space(at)
        if at == self.end:
            return Tag("end", at, at) if self.final else None
        tag = self.tag_at(at)
        if tag is not None:
            return tag
        return None if not self.final and self.may_be_tag(at) else Tag("text", at, at)

    def begins_line(self, tag: Tag) -> bool:
        """Whether a tag is the first on its line."""
        return begins_line(self.buffer.text, tag.start)

    def line_ends(self, at: int) -> bool | None:
        """Whether only white space follows on the line; None if not known yet."""
        behind = self.skip_space(at)
        if self.buffer.text.find("\n", at, behind) >= 0:
            return True
        if behind < self.end:
            return False
        return True if self.final else None
