"""Fixtures of the chat tests: the bundled model, its template and tokenizer."""

from pathlib import Path

import pytest

import lily_tiny
from lily.text import ChatTemplate, Tokenizer


@pytest.fixture(scope="session")
def tiny() -> Path:
    """The bundled model's directory."""
    return lily_tiny.CHECKPOINT


@pytest.fixture(scope="session")
def tokenizer(tiny) -> Tokenizer:
    return Tokenizer.from_directory(tiny)


@pytest.fixture(scope="session")
def template(tiny) -> ChatTemplate:
    return ChatTemplate.from_directory(tiny)
