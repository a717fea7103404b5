"""What all commands share: how failures become exit codes and one-line messages."""

from __future__ import annotations

import functools
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import typer

from lily.errors import LilyError

__all__ = ["Command", "command"]

FAILED = 1
INTERRUPTED = 130


@dataclass(frozen=True)
class Command:
    """A command's function, guarded, and the examples under its help."""

    function: Callable[..., None]
    epilog: str


def command(examples: str) -> Callable[[Callable[..., None]], Command]:
    """Make a function with a `debug` option into a command.

    A `LilyError` becomes a message on standard error (with its traceback under ``--debug``) and exit code 1;
    an interruption becomes exit code 130.
    """

    def wrap(function: Callable[..., None]) -> Command:
        @functools.wraps(function)
        def guarded(*args: Any, **options: Any) -> None:
            try:
                function(*args, **options)
            except LilyError as error:
                if options.get("debug"):
                    traceback.print_exc()
                else:
                    sys.stderr.write(f"lily: {error}\n")
                raise typer.Exit(FAILED) from error
            except KeyboardInterrupt as error:
                raise typer.Exit(INTERRUPTED) from error

        return Command(guarded, "\b\nExamples:\n" + examples)

    return wrap
