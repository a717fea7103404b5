"""The marks by which a rendered prompt shows which characters came from messages and must not act as tokens."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

__all__ = [
    "BREAK",
    "ESCAPE",
    "ITSELF",
    "TAGS",
    "Strength",
    "TagUse",
    "TextMarks",
    "escaped",
    "pattern_of",
    "without_marks",
]

# Code points that Unicode reserves for use inside programs. ESCAPE followed by ITSELF means itself; followed by BREAK
# it separates the characters of a token.
ESCAPE, BREAK, ITSELF = "\ufdd0", "\ufdd1", "\ufdd2"
_BROKEN = ESCAPE + BREAK
#: The model writes these and templates look for them, but users and tools must not use them.
TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
# Where a template looks for a tag in a text, the tag stays whole, and a separate mark before or after it says that it
# is not a token.
_BEFORE = {tag: ESCAPE + chr(0xFDD3 + at) for at, tag in enumerate(TAGS)}
_BEHIND = {tag: ESCAPE + chr(0xFDD9 + at) for at, tag in enumerate(TAGS)}
_IN_PLACE = re.compile("\ufdd0[\ufdd3-\ufdde]")

#: What is broken up in a text. "everywhere": each character that begins or ends a token, whatever its neighbours in the
#: prompt; "at ends": whole tokens, and parts of tokens at the text's ends.
Strength = Literal["everywhere", "at ends"]
#: How `TAGS` in a text are treated: "text", broken up; "in place", whole but marked as text; "token", unchanged.
TagUse = Literal["text", "in place", "token"]

# Fields whose values templates compare, and write only between their own texts.
_STRUCTURE = ("role", "type", "id", "tool_call_id")


_SHORT, _REMEMBERED = 256, 4096  # characters of a text, and texts


class TextMarks:
    """Marks texts for one set of tokens."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self._tags = pattern_of([tag for tag in TAGS if tag in tokens])
        self._tokens = pattern_of(tokens)
        self._firsts = "".join(sorted({token[0] for token in tokens if _is_punctuation(token[0])}))
        self._lasts = "".join(sorted({token[-1] for token in tokens if _is_punctuation(token[-1])}))
        # Tokens that none of these characters separates.
        others = [token for token in tokens if token[0] not in self._firsts and token[-1] not in self._lasts]
        self._others = pattern_of(others)
        # Texts without these stay unchanged, except short ones.
        self._notable = re.compile("" if others else f"[{re.escape(ESCAPE + self._firsts + self._lasts)}]")
        self._longest = max(map(len, tokens), default=0)
        self._prefixes = {token[:length] for token in tokens for length in range(1, len(token))}
        self._suffixes = {token[-length:] for token in tokens for length in range(1, len(token))}
        self._markers: dict[tuple[Strength, TagUse], Callable[[Any], Any]] = {}
        self._joined = "\0".join(tokens)

    def marker(self, strength: Strength, tags: TagUse) -> Callable[[Any], Any]:
        """A function that copies a value and marks its texts."""
        known = self._markers.get((strength, tags))
        if known is None:
            known = self._markers[strength, tags] = self._make_marker(strength, tags)
        return known

    def _make_marker(self, strength: Strength, tags: TagUse) -> Callable[[Any], Any]:
        break_text = self._break_everywhere if strength == "everywhere" else self._break_ends

        def mark_text(text: str, inner: bool) -> str:
            if len(text) > self._longest and self._notable.search(text) is None:
                return text
            return mark_short(text, inner) if len(text) <= _SHORT else mark_any(text, inner)

        def mark_any(text: str, inner: bool) -> str:
            if ESCAPE in text:
                text = text.replace(ESCAPE, ESCAPE + ITSELF)
            broken = self._outside_tags(text, tags, break_text)
            return self._break_inner_part(text) if inner and broken == text else broken

        mark_short = lru_cache(maxsize=_REMEMBERED)(mark_any)  # names, keys and descriptions recur

        def mark(value: Any, inner: bool = True, keys: bool = False) -> Any:
            if isinstance(value, str):
                return mark_text(value, inner)
            if isinstance(value, Mapping):
                return {
                    mark_text(key, keys) if isinstance(key, str) else key: mark(
                        item, keys or key not in _STRUCTURE, keys or key == "arguments"
                    )
                    for key, item in value.items()
                }
            if isinstance(value, list):
                return [mark(item, inner, keys) for item in value]
            return value

        return mark

    def _outside_tags(self, text: str, tags: TagUse, break_text: Callable[[str], str]) -> str:
        if tags == "text" or self._tags.search(text) is None:
            return break_text(text)
        parts: list[str] = []
        start = 0
        for match in self._tags.finditer(text):
            parts.append(break_text(text[start : match.start()]))
            tag = match[0]
            if tags == "token":
                parts.append(tag)
            elif text[: match.start()].strip():
                parts.append(_BEFORE[tag] + tag)
            else:  # where templates look for the beginning of a text
                parts.append(tag + _BEHIND[tag])
            start = match.end()
        parts.append(break_text(text[start:]))
        return "".join(parts)

    def _break_everywhere(self, text: str) -> str:
        for character in self._firsts:
            text = text.replace(character, character + _BROKEN)
        for character in self._lasts:
            text = text.replace(character, _BROKEN + character)
        return self._others.sub(_parted, text)

    def _break_ends(self, text: str) -> str:
        text = self._tokens.sub(_parted, text)
        kept = text.rstrip()
        end = next(
            (n for n in range(min(self._longest, len(kept)), 0, -1) if kept[len(kept) - n :] in self._prefixes), 0
        )
        if end:
            at = len(kept) - end + 1
            text = text[:at] + _BROKEN + text[at:]
        start = len(text) - len(text.lstrip())
        if any(text[start : start + n] in self._suffixes for n in range(1, self._longest)):
            text = text[:start] + _BROKEN + text[start:]
        return text

    def _break_inner_part(self, text: str) -> str:
        """Breaks the middle of a token, which could stand between two ends from the template."""
        part = text.strip()
        if not 0 < len(part) <= self._longest or part not in self._joined:
            return text
        start = len(text) - len(text.lstrip())
        return text[:start] + _BROKEN + text[start:]


def pattern_of(tokens: Sequence[str], *, live: bool = False) -> re.Pattern[str]:
    """Finds any of the tokens, the first of those that begin at a place; `live`: unless a mark says that it is text."""
    if not tokens:
        return re.compile(r"((?!))")
    # Grouping branches by their first character makes the search many times faster.
    by_first: dict[str, list[str]] = {}
    for token in tokens:
        rest = re.escape(token[1:])
        by_first.setdefault(token[0], []).append(rest + _not_marked(token) if live else rest)
    branches = [f"{re.escape(first)}(?:{'|'.join(rests)})" for first, rests in by_first.items()]
    return re.compile(f"({'|'.join(branches)})")


def _not_marked(token: str) -> str:
    """The pattern after a token beside which no mark may stand."""
    if token in TAGS:
        return f"(?<!{_BEFORE[token]}{re.escape(token)})(?!{_BEHIND[token]})"
    return f"(?<!{_BROKEN}{re.escape(token)})(?!{_BROKEN})" if len(token) == 1 else ""


def escaped(value: Any) -> Any:
    """A copy in which anything that looks like a mark is escaped."""
    if isinstance(value, str):
        return value.replace(ESCAPE, ESCAPE + ITSELF)
    if isinstance(value, Mapping):
        return {escaped(key): escaped(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(map(escaped, value))
    return list(map(escaped, value)) if isinstance(value, list) else value


def without_marks(text: str) -> str:
    """The text as it was before it was marked."""
    if ESCAPE not in text:
        return text
    text = _IN_PLACE.sub("", text.replace(_BROKEN, ""))
    return text.replace(ESCAPE + ITSELF, ESCAPE)


def _parted(match: re.Match[str]) -> str:
    return match[0][:1] + _BROKEN + match[0][1:]


def _is_punctuation(character: str) -> bool:
    return not character.isalnum() and not character.isspace()
