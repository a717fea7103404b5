"""Counts and speeds of one answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lily.chat import Done

__all__ = ["Statistics"]


@dataclass
class Statistics:
    """What one prefill and the generation after it took.

    Attributes
    ----------
    prompt_tokens
        Tokens of the whole prompt.
    reused_tokens
        Those of them that the session already had.
    generated_tokens
        Tokens of the answer, without the stop token.
    finish_reason
        ``"stop"``, ``"length"`` or ``"interrupted"``.
    """

    prompt_tokens: int = 0
    reused_tokens: int = 0
    prefill_seconds: float = 0.0
    generated_tokens: int = 0
    decode_seconds: float = 0.0
    finish_reason: str = "interrupted"

    @classmethod
    def of(cls, done: Done) -> Statistics:
        """Those of a turn of a chat."""
        usage, timings = done.usage, done.timings
        return cls(
            prompt_tokens=usage.prompt_tokens,
            reused_tokens=usage.cached_tokens,
            prefill_seconds=timings.prefill_seconds,
            generated_tokens=usage.completion_tokens,
            decode_seconds=timings.decode_seconds,
            finish_reason=done.finish_reason,
        )

    @property
    def prefill_rate(self) -> float:
        """Prefilled tokens a second."""
        return _rate(self.prompt_tokens - self.reused_tokens, self.prefill_seconds)

    @property
    def decode_rate(self) -> float:
        """Generated tokens a second."""
        return _rate(self.generated_tokens, self.decode_seconds)

    def to_dict(self) -> dict[str, Any]:
        """All figures, ready for JSON; seconds and tokens a second."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "generated_tokens": self.generated_tokens,
            "finish_reason": self.finish_reason,
            "prefill_seconds": round(self.prefill_seconds, 6),
            "prefill_tokens_per_second": round(self.prefill_rate, 2),
            "decode_seconds": round(self.decode_seconds, 6),
            "decode_tokens_per_second": round(self.decode_rate, 2),
        }

    def __str__(self) -> str:
        reused = f" ({self.reused_tokens} reused)" if self.reused_tokens else ""
        end = "" if self.finish_reason == "stop" else f", {self.finish_reason}"
        return (
            f"prefill {self.prompt_tokens} tokens{reused}, {self.prefill_rate:.1f} tok/s; "
            f"decode {self.generated_tokens} tokens, {self.decode_rate:.1f} tok/s{end}"
        )


def _rate(tokens: int, seconds: float) -> float:
    return tokens / seconds if seconds > 0 else 0.0
