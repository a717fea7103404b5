"""lily verify: does this machine compute what the model says?"""

from __future__ import annotations

import json
import sys

import typer

from lily.cli import options
from lily.cli.command import FAILED, command
from lily.cli.terminal import remark

__all__ = ["verify"]


@command("""\
  lily verify
  lily verify ./Qwen3.6-35B-A3B-4bit
  lily verify lily-tiny --backend sim --json
""")
def verify(
    model: options.Model = options.DEFAULT_MODEL,
    backend: options.Backend = "auto",
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Check a backend on this machine: each kernel against a reference, and the whole model against the CPU backend.

    Prints all that a bug report needs about the machine. The exit code is 1 if something differs.
    """
    from lily.verify import verify as check

    result = check(model, backend=backend, report=remark)
    sys.stdout.write((json.dumps(result.to_dict(), indent=2) if as_json else str(result)) + "\n")
    if not result.passed:
        raise typer.Exit(FAILED)
