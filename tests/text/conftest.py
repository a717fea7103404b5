"""Shared fixtures of the text tests: the bundled model's text files, and writable copies of them."""

import os
import shutil
from pathlib import Path

import pytest

from lily.text import ChatTemplate, Tokenizer

TEXT_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
    "config.json",
)
BUNDLED = Path(__file__).parents[2] / "python" / "lily" / "data" / "lily-tiny"


@pytest.fixture(scope="session")
def tiny() -> Path:
    """The bundled model's directory (LILY_TINY points elsewhere)."""
    return Path(os.environ.get("LILY_TINY", BUNDLED))


@pytest.fixture(scope="session")
def tokenizer(tiny) -> Tokenizer:
    return Tokenizer.from_directory(tiny)


@pytest.fixture(scope="session")
def template(tiny) -> ChatTemplate:
    return ChatTemplate.from_directory(tiny)


@pytest.fixture
def directory(tiny, tmp_path) -> Path:
    """A writable copy of the bundled model's text files."""
    for name in TEXT_FILES:
        shutil.copyfile(tiny / name, tmp_path / name)
    return tmp_path
