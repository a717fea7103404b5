"""lily generate: continues a text, without a chat template."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from lily.cli import loading, options
from lily.cli.command import command
from lily.cli.generation import prefill, timed_tokens
from lily.cli.statistics import Statistics
from lily.cli.terminal import AnswerWriter, remark

if TYPE_CHECKING:
    from lily.model import Model
    from lily.sampling import Sampling
    from lily.session import Session

__all__ = ["generate"]


@command("""\
  lily generate -p "Once upon a time" --max-tokens 100
  lily generate ./Qwen3.6-35B-A3B-4bit -p "def fibonacci(n):" --greedy --json
  cat story.txt | lily generate
""")
def generate(
    model: options.Model = options.DEFAULT_MODEL,
    prompt: Annotated[
        str | None, typer.Option("-p", "--prompt", help="Text to continue (default: standard input).")
    ] = None,
    special: Annotated[
        bool,
        typer.Option("--special/--no-special", help="Read <|im_end|> and others as control tokens."),
    ] = True,
    ignore_stop: Annotated[bool, typer.Option("--ignore-stop", help="Continue after a stop token.")] = False,
    max_tokens: Annotated[int, typer.Option(min=1, help="Maximum tokens to generate.")] = 256,
    temperature: options.Temperature = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    min_p: options.MinP = None,
    greedy: options.Greedy = False,
    seed: options.Seed = None,
    threads: options.Threads = None,
    context: options.Context = None,
    backend: options.Backend = "auto",
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Continue a text without a chat template. Prints only the continuation."""
    if prompt is None:
        if sys.stdin.isatty():
            raise typer.BadParameter("give a text with -p, or pipe one in")
        prompt = sys.stdin.read()
    wanted = options.SamplingOptions(temperature, top_k, top_p, min_p, greedy)
    with (
        loading.load_model(model, backend=backend, max_context=context, threads=threads) as loaded,
        loaded.session(seed=seed) as session,
    ):
        ids = loaded.tokenizer.encode(prompt, parse_special=special)
        stop_tokens = frozenset() if ignore_stop else loaded.stop_tokens
        sampling = wanted.resolve(loaded.default_sampling)
        _complete(loaded, session, ids, sampling, stop_tokens, max_tokens, as_json)


def _complete(
    model: Model,
    session: Session,
    ids: list[int],
    sampling: Sampling,
    stop_tokens: frozenset[int],
    max_tokens: int,
    as_json: bool,
) -> None:
    statistics = Statistics()
    prefill(session, ids, statistics)
    writer = None if as_json else AnswerWriter()
    detokenizer = model.tokenizer.detokenizer()
    tokens: list[int] = []
    pieces: list[str] = []

    def add(text: str) -> None:
        pieces.append(text)
        if writer is not None and text:
            writer.write(text)

    try:
        for token in timed_tokens(
            session, statistics, max_tokens=max_tokens, sampling=sampling, stop_tokens=stop_tokens
        ):
            tokens.append(token)
            add(detokenizer.feed(token))
    finally:
        add(detokenizer.finish())
        if writer is not None:
            writer.finish()
    if as_json:
        result = {"text": "".join(pieces), "tokens": tokens, **statistics.to_dict()}
        sys.stdout.write(json.dumps(result, ensure_ascii=False) + "\n")
    remark(str(statistics))
