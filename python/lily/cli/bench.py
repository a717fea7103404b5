"""lily bench: how fast a model runs here, beside the machine's limits and another engine."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from lily.cli import options
from lily.cli.command import command
from lily.cli.terminal import remark
from lily.errors import InvalidArgumentError

__all__ = ["bench"]


@command("""\
  lily bench
  lily bench ./Qwen3.6-35B-A3B-4bit --prompt 128,512,2048 --context 16,8192
  lily bench ./Qwen3.6-35B-A3B-4bit --vs llama.cpp --gguf Qwen3.6-35B-A3B-Q4_K.gguf --json
""")
def bench(
    model: options.Model = options.DEFAULT_MODEL,
    backend: options.Backend = "auto",
    prompt: Annotated[str, typer.Option(help="Prompt lengths, separated by commas.")] = "128,512",
    context: Annotated[str, typer.Option(help="Tokens before decoding, separated by commas.")] = "16,512",
    decode: Annotated[int, typer.Option(min=1, help="Tokens of one decoding run.")] = 32,
    runs: Annotated[int, typer.Option(min=1, help="Runs of which medians are taken.")] = 5,
    threads: options.Threads = None,
    vs: Annotated[str | None, typer.Option(metavar="llama.cpp", help="Alternate with this engine.")] = None,
    gguf: Annotated[Path | None, typer.Option(help="The other engine's file of the same model.")] = None,
    peer_python: Annotated[str, typer.Option(help="Interpreter with llama-cpp-python.")] = sys.executable,
    plot: Annotated[Path | None, typer.Option(help="Write a bar chart (needs matplotlib).")] = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Measure prompt and decoding speed, memory, and the speed that the memory bandwidth allows.

    Medians after a warm-up, lowest and highest in brackets. Equal runs must produce equal tokens.
    """
    from lily.bench.measure import Workload, measure
    from lily.bench.plot import save_plot
    from lily.bench.table import render

    if vs not in (None, "llama.cpp"):
        raise InvalidArgumentError(f'--vs "{vs}" is not known; "llama.cpp" is')
    if (vs is None) != (gguf is None):
        raise InvalidArgumentError("--vs llama.cpp and --gguf FILE go together")
    if gguf is not None and not gguf.is_file():
        raise InvalidArgumentError(f"{gguf}: there is no such file")
    workload = Workload(
        backend=backend,
        prompt=options.lengths("--prompt", prompt),
        context=options.lengths("--context", context),
        decode=decode,
        runs=runs,
        threads=threads,
        gguf=gguf,
        peer_python=peer_python,
    )
    result = measure(model, workload, partial(remark, piped=True))
    if plot is not None:
        save_plot(result, plot)
    sys.stdout.write(json.dumps(result, indent=2) + "\n" if as_json else render(result))
