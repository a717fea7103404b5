"""Fixtures of the chat tests: the bundled model, its template and tokenizer, and answers from a script."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import lily_tiny
from lily import Model, Session
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


@pytest.fixture(scope="session")
def model(tiny) -> Iterator[Model]:
    # One thread: with more, a busy machine makes every token slow.
    with Model.load(tiny, threads=1, max_context=4096) as loaded:
        yield loaded


@pytest.fixture
def script(monkeypatch, model) -> Callable[..., None]:
    """A function that makes the model say the given texts, one for each turn.

    The engine computes every token; a mask leaves it no choice. A text that ends in "<cut>" is not followed by the end
    of the turn.
    """
    generation = Session.generation
    answers: list[str] = []

    def scripted(self, *arguments, **options):
        text = answers.pop(0)
        ids = model.tokenizer.encode(text.removesuffix("<cut>"))
        if not text.endswith("<cut>"):
            ids.append(model.tokenizer.token_id("<|im_end|>"))
        made = generation(self, *arguments, **options)

        def only_the_next() -> np.ndarray:
            mask = np.zeros((model.sampled_vocab_size + 31) // 32, dtype=np.uint32)
            token = ids[len(made.tokens)]
            mask[token // 32] = 1 << (token % 32)
            return mask

        made.mask = only_the_next
        return made

    def install(*texts: str) -> None:
        monkeypatch.setattr(Session, "generation", scripted)
        answers[:] = texts

    return install
