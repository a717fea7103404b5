"""The command `lily`; this module imports without the packages that the commands need."""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Parameters
    ----------
    arguments
        What follows the command's name; by default the process's own arguments.

    Returns
    -------
    int
        0: done. 1: Lily refused or failed, with one message on standard error. 2: wrong usage.
        130: interrupted.
    """
    try:
        import rich
        import typer
    except ImportError as error:
        from lily._version import DISTRIBUTION

        hint = f"pip install '{DISTRIBUTION}[cli]'"
        sys.stderr.write(f"lily: the command line needs the package {error.name}; install it with {hint}\n")
        return 1
    del rich, typer
    from lily.cli.app import run

    return run(sys.argv[1:] if arguments is None else list(arguments))
