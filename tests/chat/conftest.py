"""Fixtures of the chat tests: the bundled model, its template and tokenizer, and answers from a script."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import lily_tiny
from lily import Model
from lily.text import ChatTemplate, Tokenizer
from scripted_answers import scripted


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


@pytest.fixture(scope="session")
def model(tiny) -> Iterator[Model]:
    # One thread: with more, a busy machine makes every token slow.
    with Model.load(tiny, threads=1, max_context=4096) as loaded:
        yield loaded


@pytest.fixture
def script(monkeypatch, model) -> Callable[..., None]:
    """Makes the model say the given texts, one for each turn."""
    return scripted(monkeypatch, model)
