"""Exceptions that Lily raises: each is a LilyError and also the matching builtin exception."""

from __future__ import annotations

import re

__all__ = [
    "BackendError",
    "BusyError",
    "CancelledError",
    "CheckpointError",
    "ClosedError",
    "ConfigError",
    "ContextOverflowError",
    "InvalidArgumentError",
    "LilyError",
    "MemoryLimitError",
    "MissingExtraError",
    "NonFiniteError",
    "TemplateError",
    "TokenizerError",
]


# Limits on a message and on a word in it, so that a huge argument is quoted in a few characters.
_LONGEST_MESSAGE, _LONGEST_WORD = 4000, re.compile(r"\S{400,}")


class LilyError(Exception):
    """Base class of every exception that Lily raises on purpose. Its messages are short and can be printed anywhere."""

    def __init__(self, *arguments: object, **fields: object) -> None:
        super().__init__(*(_short(value) if isinstance(value, str) else value for value in arguments), **fields)


class CheckpointError(LilyError, ValueError):
    """A checkpoint's files are missing, damaged or not in a supported layout."""


class ConfigError(LilyError, ValueError):
    """The model's config.json is damaged or describes a model that is not supported."""


class InvalidArgumentError(LilyError, ValueError):
    """An argument has the wrong type, or its value is out of range."""


class ContextOverflowError(LilyError, ValueError):
    """The tokens do not fit in the context that was allocated or that the model supports."""


class MemoryLimitError(LilyError, MemoryError):
    """The memory needed exceeds the limit, or could not be allocated."""


class ClosedError(LilyError, RuntimeError):
    """The model or session was closed before it was used."""


class BusyError(LilyError, RuntimeError):
    """The session is in use by another thread or generation."""


class CancelledError(LilyError):
    """The caller cancelled the work before it was complete."""


class BackendError(LilyError, RuntimeError):
    """A compute backend is unavailable or failed."""


class NonFiniteError(BackendError):
    """Computed or stored values are NaN or infinite; the message names where they first appear."""


class TokenizerError(LilyError, ValueError):
    """The tokenizer's files are missing, damaged or not supported."""


class TemplateError(LilyError, ValueError):
    """The chat template is missing or damaged, or it rejected the messages."""


class MissingExtraError(LilyError, ImportError):
    """An optional dependency is not installed."""


def _short(text: str) -> str:
    text = text.encode("utf-8", "backslashreplace").decode()
    text = _LONGEST_WORD.sub(lambda match: f"{match[0][:120]}...{match[0][-40:]}", text)
    return text if len(text) <= _LONGEST_MESSAGE else f"{text[: _LONGEST_MESSAGE // 2]} ... {text[-500:]}"
