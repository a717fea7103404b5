"""lily ablate: how much each mechanism of the GPU engine gains on this machine."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from lily.cli import options
from lily.cli.command import command
from lily.cli.terminal import remark

__all__ = ["ablate"]


@command("""\
  lily ablate ./Qwen3.6-35B-A3B-4bit
  lily ablate ./Qwen3.6-35B-A3B-4bit --only D5 --only D6 --context 4096,32768 --json
  lily ablate lily-tiny --backend sim --prompt 64 --context 32 --decode 8 --runs 1
""")
def ablate(
    model: options.Model = options.DEFAULT_MODEL,
    backend: options.Backend = "auto",
    only: Annotated[
        list[str] | None, typer.Option(metavar="MECHANISM", help="Measure only this one, such as P1 or D4.")
    ] = None,
    prompt: Annotated[str | None, typer.Option(help="Prompt lengths, separated by commas.")] = None,
    context: Annotated[str | None, typer.Option(help="Tokens before decoding, separated by commas.")] = None,
    decode: Annotated[int, typer.Option(min=1, help="Tokens in each decoding run.")] = 32,
    runs: Annotated[int, typer.Option(min=1, help="Number of runs; medians are printed.")] = 5,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Alternate runs with all mechanisms of the GPU engine on and runs with one off, and print the gains.

    The default lengths are those at which each mechanism is meant to matter. Figures of the sim backend reflect the
    simulator's work, not a GPU's.
    """
    from lily.bench.ablation import ablate as measure

    result = measure(
        model,
        backend=backend,
        mechanisms=only or None,
        prompt=None if prompt is None else options.lengths("--prompt", prompt),
        context=None if context is None else options.lengths("--context", context),
        decode=decode,
        runs=runs,
        report=remark,
    )
    sys.stdout.write((json.dumps(result.to_dict(), indent=2) if as_json else str(result)) + "\n")
