"""The command line, assembled from its commands."""

from __future__ import annotations

import sys
from typing import Annotated

from lily.checks.extras import require_extra

require_extra("cli", "typer", "rich")

# ruff: noqa: E402 -- what follows needs those packages
import typer

from lily._version import __version__
from lily.cli.ablate import ablate
from lily.cli.bench import bench
from lily.cli.chat import chat
from lily.cli.doctor import doctor
from lily.cli.generate import generate
from lily.cli.info import info
from lily.cli.perplexity import perplexity
from lily.cli.serve import serve
from lily.cli.step_report import step_report
from lily.cli.verify import verify

__all__ = ["run"]

_EXAMPLES = """\b
Examples:
  lily chat                              chat with the small bundled model
  lily chat ./Qwen3.6-35B-A3B-4bit       chat with a checkpoint on this machine
  lily chat -p "What is a monad?"        one question, one answer
  lily generate -p "Once upon a time"    continue a text
  lily info ./Qwen3.6-35B-A3B-4bit       what a checkpoint contains, and its memory
  lily bench                             measure the speed on this machine
  lily serve                             serve it with the OpenAI and Anthropic APIs
  lily doctor                            what this machine has, and which backend Lily would use
  lily verify                            check the results on this machine
"""

app = typer.Typer(
    name="lily",
    help="Run Qwen3.6-35B-A3B and models of its architecture.",
    epilog=_EXAMPLES,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # the same plain help on terminals and in pipes
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _command in (ablate, bench, chat, doctor, generate, info, perplexity, serve, step_report, verify):
    app.command(epilog=_command.epilog)(_command.function)


def run(arguments: list[str]) -> int:
    """Run the command line; exit codes as in `lily.cli.main`."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        # A character missing from the terminal's encoding must not end an answer.
        reconfigure(errors="replace")
    try:
        app(args=arguments, prog_name="lily")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"lily {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    del version  # its callback has done the work
