"""Where lily-tiny's files lie, and its held-out text as token ids, for tests and scripts."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

TESTS = Path(__file__).resolve().parent.parent
EVALUATION = TESTS / "data" / "lily-tiny"
# The bundled copy in the tree; LILY_TINY points at another one.
CHECKPOINT = Path(os.environ.get("LILY_TINY", TESTS.parent / "python" / "lily" / "data" / "lily-tiny"))
DOCUMENT_SEPARATOR = "\f\n"


def documents() -> list[str]:
    """The held-out documents; each is scored on its own."""
    return (EVALUATION / "heldout.txt").read_text(encoding="utf-8").split(DOCUMENT_SEPARATOR)


def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))


def document_ids() -> list[NDArray[np.int64]]:
    """The token ids of every held-out document."""
    encode = tokenizer().encode
    return [np.array(encode(text, add_special_tokens=False).ids) for text in documents()]
