"""lily perplexity: how well a model predicts the documents of a text file."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from lily.cli import loading, options
from lily.cli.command import command
from lily.cli.progress import ProgressBars
from lily.cli.terminal import remark
from lily.errors import InvalidArgumentError

if TYPE_CHECKING:
    from lily.session import Session

__all__ = ["perplexity"]

_SEPARATOR = "\f\n"


@command("""\
  lily perplexity heldout.txt
  lily perplexity ./Qwen3.6-35B-A3B-4bit wiki.txt --max-tokens 20000 --json
""")
def perplexity(
    first: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="Model, as for lily chat. A single argument is the FILE.")
    ] = None,
    second: Annotated[str | None, typer.Argument(metavar="FILE", help="UTF-8 text; - is standard input.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Stop after this many scored tokens.")] = None,
    threads: options.Threads = None,
    context: options.Context = None,
    backend: options.Backend = "auto",
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Measure the perplexity of a text.

    Lines that end in a form feed separate documents. Each document starts from an empty session; its first
    token is not counted. Special tokens in the text are read as ordinary characters.
    """
    if first is None:
        raise typer.BadParameter("give the FILE to score")
    model, file = (options.DEFAULT_MODEL, first) if second is None else (first, second)
    documents = _read(file).split(_SEPARATOR)
    with (
        loading.load_model(model, backend=backend, max_context=context, threads=threads) as loaded,
        loaded.session() as session,
    ):
        encoded = [loaded.tokenizer.encode(text, parse_special=False) for text in documents]
        batches = list(_limited(encoded, max_tokens))
        if not batches:
            raise InvalidArgumentError(f"{file}: no document has two tokens, so there is nothing to score")
        start = time.perf_counter()
        loss, tokens = _score(session, batches)
        seconds = time.perf_counter() - start
    result = {
        "perplexity": math.exp(loss / tokens),
        "mean_loss": loss / tokens,
        "tokens": tokens,
        "documents": len(batches),
        "seconds": round(seconds, 3),
        "tokens_per_second": round(tokens / seconds, 2),
    }
    if as_json:
        sys.stdout.write(json.dumps(result) + "\n")
        return
    sys.stdout.write(f"perplexity {result['perplexity']:.4f} over {tokens} tokens, {len(batches)} documents\n")
    remark(f"{result['seconds']} s, {result['tokens_per_second']} tok/s")


def _read(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidArgumentError(f"{file}: cannot be read ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"{file}: not UTF-8 text ({error.reason} at byte {error.start})") from error


def _limited(documents: list[list[int]], max_tokens: int | None) -> Iterator[list[int]]:
    """Documents that can be scored, the last one cut so that `max_tokens` tokens are scored in total."""
    left = max_tokens
    for ids in documents:
        part = ids if left is None else ids[: left + 1]
        if len(part) < 2:
            continue
        yield part
        if left is not None:
            left -= len(part) - 1


def _score(session: Session, documents: list[list[int]]) -> tuple[float, int]:
    """Sum of the negative log-probabilities (natural) and their number."""
    loss, tokens = 0.0, 0
    total = sum(len(ids) - 1 for ids in documents)
    with ProgressBars(unit="tokens") as bars:
        for ids in documents:
            loss -= float(np.asarray(session.score(ids)).sum(dtype=np.float64))
            tokens += len(ids) - 1
            bars.report("scoring", tokens, total)
    return loss, tokens
