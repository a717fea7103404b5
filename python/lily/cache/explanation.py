"""Why a prompt would hit or miss the prefix cache, as an object."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CacheExplanation"]


@dataclass(frozen=True)
class CacheExplanation:
    """What the cache knows about some token ids. Made by `PrefixCache.explain`.

    The texts are None if no tokenizer was given.
    """

    total_tokens: int
    matched_tokens: int  #: leading ids that are known; the index of the first differing one
    cached_tokens: int  #: position of the nearest snapshot: computing would start there
    recompute_tokens: int  #: ids that would be computed
    given_token: int | None  #: the first differing id among those given; None if all are known
    stored_token: int | None  #: the id in its place in the cache; None if the cache has nothing further
    text_before: str | None  #: text just before the difference, the same on both sides
    given_text: str | None  #: text from the difference on, as given
    stored_text: str | None  #: text from the difference on, in the cache

    def __str__(self) -> str:
        lines = [
            f"{self.cached_tokens:,} of {self.total_tokens:,} tokens come from the cache, "
            f"{self.recompute_tokens:,} must be computed"
        ]
        if self.given_token is None:
            lines.append("the cache has all tokens")
        elif self.stored_token is None:
            lines.append(f"the cache has nothing that continues after token {self.matched_tokens:,}")
        else:
            lines.append(
                f"token {self.matched_tokens:,} is the first that differs: "
                f"{self.given_token} given, {self.stored_token} in the cache"
            )
        if self.given_text is not None and self.given_token is not None:
            lines.append(f"  given: {self.text_before!r} + {self.given_text!r}")
            if self.stored_token is not None:
                lines.append(f"  cache: {self.text_before!r} + {self.stored_text!r}")
        return "\n".join(lines)
