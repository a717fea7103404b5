"""llguidance, the library that compiles grammars: its limits, and its verdict on a text before compilation."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from lily.errors import MissingExtraError

if TYPE_CHECKING:
    import llguidance

__all__ = ["compile_limits", "json_problem", "load_library", "reason_of"]

_CACHED_TEXT = 2_000  # characters of a checked text that is remembered
_LONGEST_REASON = 300  # characters


def load_library() -> Any:
    """The module.

    Raises
    ------
    MissingExtraError
        It is not installed.
    """
    try:
        import llguidance
    except ImportError as error:
        raise MissingExtraError(
            'response_format and tool_choice="required" need llguidance; install it with '
            "pip install 'lily-engine[structured]'"
        ) from error
    return llguidance


def compile_limits() -> llguidance.LLParserLimits:
    """How much work and memory one grammar may take: about two seconds and 200 MB.

    Objects of 2,000 optional properties, enums of 10,000 values and schemas of 10,000 parts fit.
    """
    limits: llguidance.LLParserLimits = load_library().LLParserLimits(
        max_items_in_row=20_000,
        initial_lexer_fuel=500_000,
        step_lexer_fuel=200_000,
        step_max_items=200_000,
        max_lexer_states=150_000,
        max_grammar_size=250_000,
        verbose_errors=False,
    )
    return limits


def json_problem(schema: Mapping[str, Any]) -> str:
    """Why the library cannot compile a small schema; empty if it can."""
    text = "start: %json " + json.dumps(schema)
    return _remembered_problem(text) if len(text) <= _CACHED_TEXT else _problem(text)


def reason_of(error: str) -> str:
    """The library's message without its listing of the grammar, most of which the caller did not write."""
    reason = re.split(r"\n *\d+ \| |\n<", error, maxsplit=1)[0].strip()
    if reason.startswith("NoExtension"):
        return "no token fits"
    return reason if len(reason) <= _LONGEST_REASON else f"{reason[:_LONGEST_REASON]}..."


def _problem(text: str) -> str:
    error = load_library().LLMatcher.validate_grammar(text, limits=compile_limits())
    return "" if not error or error.startswith("WARNING") else reason_of(error)


_remembered_problem = lru_cache(maxsize=1024)(_problem)
