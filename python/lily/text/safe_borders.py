"""SafeBorders: places where a long text can be cut so that its parts have the same ids as the whole."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import tokenizers

__all__ = ["SafeBorders"]

_PATTERNS = tuple(
    rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?{letters}+|\p{{N}}| ?[^\s{others}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    for letters, others in ((r"[\p{L}\p{M}]", r"\p{L}\p{M}\p{N}"), (r"\p{L}", r"\p{L}\p{N}"))
)
_BEHIND = " \n,;、。，"  # characters allowed beside a border
# No match of the patterns continues from a letter or digit to one of these, nor from a line's end to a text.
_BORDER = re.compile(
    r"(?<=[0-9A-Za-zÀ-ÖØ-öø-ÿ\u0400-\u0481\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fa5\uac00-\ud7a3])(?=[ \n,;、。，])"
    r"|(?<=\n)(?=\S)"
)


class SafeBorders:
    """Cuts texts for one tokenizer; does not cut if the tokenizer's way of splitting is unknown."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, added_tokens: Iterable[str], *, exact: bool) -> None:
        """
        Parameters
        ----------
        tokenizer
            The tokenizer whose parts are examined.
        added_tokens
            Their texts.
        exact
            Whether added tokens match regardless of their neighbours.
        """
        spaces = any(character in token for token in added_tokens for character in _BEHIND)
        self._known = exact and not spaces and _is_known(tokenizer)

    def parts(self, text: str, shortest: int) -> Iterator[str]:
        """The text in parts of at least `shortest` characters, each up to the next border."""
        start = 0
        while start < len(text):
            border = _BORDER.search(text, start + shortest) if self._known else None
            end = len(text) if border is None else border.start()
            yield text[start:end]
            start = end


def _is_known(tokenizer: tokenizers.Tokenizer) -> bool:
    normalizer, split = _state(tokenizer.normalizer), _state(tokenizer.pre_tokenizer)
    steps = split.get("pretokenizers", [])
    return (
        normalizer.get("type", "NFC") == "NFC"
        and [step.get("type") for step in steps] == ["Split", "ByteLevel"]
        and steps[0].get("pattern", {}).get("Regex") in _PATTERNS
        and steps[0].get("behavior") == "Isolated"
        and not steps[0].get("invert")
        and not steps[1].get("add_prefix_space")
        and not steps[1].get("use_regex")
    )


def _state(part: Any) -> dict[str, Any]:
    """A part's settings in tokenizer.json."""
    state: Any = {} if part is None else json.loads(part.__getstate__())
    return state if isinstance(state, dict) else {}
