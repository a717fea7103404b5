"""The ids that end an answer: the union from a checkpoint's files, because each alone may miss one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lily.checkpoint.json_file import read_optional_json_object
from lily.checkpoint.read_file import CONFIG_LIMIT
from lily.checks.arguments import as_path
from lily.checks.quoting import quoted_json, quoted_path, quoted_text
from lily.checks.whole_numbers import whole_number
from lily.errors import ConfigError, TokenizerError
from lily.text.tokenizer import Tokenizer
from lily.text.tokenizer_config import read_tokenizer_config

__all__ = ["read_stop_tokens"]


def read_stop_tokens(directory: Path | str, *, vocab_size: int, tokenizer: Tokenizer | None = None) -> frozenset[int]:
    """Collect the stop ids of a checkpoint directory.

    Parameters
    ----------
    directory
        Where generation_config.json, config.json and tokenizer_config.json are; each may be missing.
    vocab_size
        Rows of the model's vocabulary; every stop id must be below it.
    tokenizer
        Gives the id of tokenizer_config.json's ``eos_token``; without it that file is not used.

    Raises
    ------
    ConfigError
        An ``eos_token_id`` is not an integer, a list of integers or null, or is out of range.
    TokenizerError
        tokenizer_config.json is damaged, or its ``eos_token`` is not in the vocabulary.
    """
    directory = as_path("directory", directory, ConfigError)
    vocab_size = whole_number("vocab_size", vocab_size, 1)
    if tokenizer is not None and not isinstance(tokenizer, Tokenizer):
        raise ConfigError(f"tokenizer must be a lily.text.Tokenizer, not a {type(tokenizer).__name__}")
    stops: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        path = directory / name
        fields = read_optional_json_object(path, ConfigError, limit=CONFIG_LIMIT, only_finite=False) or {}
        stops |= _ids(path, "eos_token_id", fields.get("eos_token_id"), vocab_size)
        text_fields = fields.get("text_config")
        if isinstance(text_fields, dict):
            stops |= _ids(path, "text_config.eos_token_id", text_fields.get("eos_token_id"), vocab_size)
    if tokenizer is not None:
        stops |= _tokenizer_stop(directory, tokenizer, vocab_size)
    return frozenset(stops)


def _ids(path: Path, field: str, value: Any, vocab_size: int) -> set[int]:
    entries = value if isinstance(value, list) else [] if value is None else [value]
    for entry in entries:
        if isinstance(entry, bool) or not isinstance(entry, int):
            raise ConfigError(
                f"{quoted_path(path)}: {field} must be an integer, a list of integers or null, but "
                f"contains {quoted_json(entry)}"
            )
        if not 0 <= entry < vocab_size:
            raise ConfigError(
                f"{quoted_path(path)}: {field} contains {quoted_json(entry)}, outside the vocabulary of "
                f"{vocab_size} ids"
            )
    return set(entries)


def _tokenizer_stop(directory: Path, tokenizer: Tokenizer, vocab_size: int) -> set[int]:
    token = read_tokenizer_config(directory).special_tokens.get("eos_token")
    if token is None:
        return set()
    token_id = tokenizer.token_id(token)
    path = directory / "tokenizer_config.json"
    if token_id is None:
        raise TokenizerError(f"{quoted_path(path)}: eos_token {quoted_text(repr(token))} is not in tokenizer.json")
    if token_id >= vocab_size:
        raise TokenizerError(
            f"{quoted_path(path)}: eos_token {quoted_text(repr(token))} has id {token_id}, "
            f"outside the vocabulary of {vocab_size} ids"
        )
    return {token_id}
