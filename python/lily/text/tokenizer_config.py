"""The parts of tokenizer_config.json that Lily uses: named special tokens and chat templates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lily.checkpoint.json_file import read_optional_json_object
from lily.checkpoint.read_file import TOKENIZER_CONFIG_LIMIT
from lily.checks.arguments import as_path
from lily.checks.quoting import quoted_path
from lily.errors import LilyError, TokenizerError

__all__ = ["TokenizerConfig", "named_templates", "read_tokenizer_config"]

_TOKEN_NAMES = ("bos_token", "eos_token", "pad_token", "unk_token")


@dataclass(frozen=True)
class TokenizerConfig:
    """The contents of a tokenizer_config.json; empty if the file is missing.

    Attributes
    ----------
    special_tokens
        Text of ``bos_token``, ``eos_token``, ``pad_token`` and ``unk_token``, where given.
    chat_templates
        Chat template source by name; a single template is called ``"default"``.
    """

    special_tokens: Mapping[str, str] = field(default_factory=dict)
    chat_templates: Mapping[str, str] = field(default_factory=dict)


def read_tokenizer_config(directory: Path | str) -> TokenizerConfig:
    """Read ``tokenizer_config.json`` of a checkpoint directory; a missing file gives an empty config.

    Raises
    ------
    TokenizerError
        The file is damaged, or one of the fields used has a wrong type.
    """
    path = as_path("directory", directory, TokenizerError) / "tokenizer_config.json"
    fields = read_optional_json_object(path, TokenizerError, limit=TOKENIZER_CONFIG_LIMIT, only_finite=False)
    if fields is None:
        return TokenizerConfig()
    tokens = {name: _token_text(path, name, fields[name]) for name in _TOKEN_NAMES if fields.get(name) is not None}
    return TokenizerConfig(tokens, named_templates(path, fields.get("chat_template"), TokenizerError))


def _token_text(path: Path, name: str, value: Any) -> str:
    # Older writers store the whole AddedToken as an object.
    text = value.get("content") if isinstance(value, dict) else value
    if not isinstance(text, str):
        raise TokenizerError(f"{quoted_path(path)}: {name} must be a string, an object with a content string, or null")
    return text


def named_templates(path: Path, value: Any, error_type: type[LilyError]) -> dict[str, str]:
    """Chat templates by name: one string, or objects with name and template."""
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    templates: dict[str, str] = {}
    for entry in value if isinstance(value, list) else [value]:
        name, source = (entry.get("name"), entry.get("template")) if isinstance(entry, dict) else (None, None)
        if not isinstance(name, str) or not isinstance(source, str):
            raise error_type(
                f"{quoted_path(path)}: chat_template must be a string or a list of objects with strings "
                "name and template"
            )
        templates[name] = source
    return templates
