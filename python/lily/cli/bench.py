"""lily bench: how fast a model runs here, beside the machine's limits and other engines."""

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

_PEERS = ("llama.cpp", "mlx-lm")


@command("""\
  lily bench
  lily bench ./Qwen3.6-35B-A3B-4bit --prompt 128,512,2048 --context 16,8192 --plot speed.svg
  lily bench ./Qwen3.6-35B-A3B-4bit --vs llama.cpp --gguf Qwen3.6-35B-A3B-Q4_K.gguf --json
  lily bench ./Qwen3.6-35B-A3B-4bit --vs mlx-lm --peer-python ~/mlx/bin/python
""")
def bench(
    model: options.Model = options.DEFAULT_MODEL,
    backend: options.Backend = "auto",
    prompt: Annotated[
        str | None,
        typer.Option(help="Prompt lengths, separated by commas; by default 256 to 128K on a GPU, else 128,512."),
    ] = None,
    context: Annotated[
        str | None, typer.Option(help="Tokens before decoding; by default 256 to 128K on a GPU, else 16,512.")
    ] = None,
    decode: Annotated[int, typer.Option(min=1, help="Tokens in each decoding run.")] = 32,
    runs: Annotated[int, typer.Option(min=1, help="Number of runs; medians are printed.")] = 5,
    threads: options.Threads = None,
    vs: Annotated[
        list[str] | None, typer.Option(metavar="ENGINE", help="Compare with llama.cpp or mlx-lm; may be repeated.")
    ] = None,
    gguf: Annotated[Path | None, typer.Option(help="GGUF file of the same model, for llama.cpp.")] = None,
    peer_python: Annotated[str, typer.Option(help="Interpreter with llama-cpp-python or mlx-lm.")] = sys.executable,
    peer_seconds: Annotated[
        float, typer.Option(min=0.0, help="Skip prompts that would take another engine more seconds.")
    ] = 60.0,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the figures as curves into this file (needs matplotlib).")
    ] = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Measure prompt and decoding speed, memory, and the speed that the memory bandwidth allows.

    Prints medians after a warm-up, with lowest and highest in brackets. Equal runs must produce equal tokens.
    """
    from lily.bench.measure import Workload, measure
    from lily.bench.plot import check_plot, save_plot
    from lily.bench.table import render

    peers = tuple(dict.fromkeys(vs or ()))
    for name in peers:
        if name not in _PEERS:
            raise InvalidArgumentError(f'--vs "{name}" is unknown; use "llama.cpp" or "mlx-lm"')
    if ("llama.cpp" in peers) != (gguf is not None):
        raise InvalidArgumentError("--vs llama.cpp and --gguf FILE go together")
    if gguf is not None and not gguf.is_file():
        raise InvalidArgumentError(f"{gguf}: there is no such file")
    if plot is not None:
        check_plot(plot)
    workload = Workload(
        backend=backend,
        prompt=None if prompt is None else options.lengths("--prompt", prompt),
        context=None if context is None else options.lengths("--context", context),
        decode=decode,
        runs=runs,
        threads=threads,
        peers=peers,
        gguf=gguf,
        peer_python=peer_python,
        peer_seconds=peer_seconds,
    )
    result = measure(model, workload, partial(remark, piped=True))
    sys.stdout.write(json.dumps(result, indent=2) + "\n" if as_json else render(result))
    sys.stdout.flush()
    if plot is not None:
        save_plot(result, plot)
