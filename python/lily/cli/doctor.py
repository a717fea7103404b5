"""lily doctor: what this machine has, what would be used, and why."""

from __future__ import annotations

import json
import sys

from lily.cli import options
from lily.cli.command import command

__all__ = ["doctor"]


@command("""\
  lily doctor
  lily doctor --json
""")
def doctor(as_json: options.AsJson = False, debug: options.Debug = False) -> None:
    """Show this machine's chip, GPU, memory and system, the backend that Lily would use, and why.

    On a machine without Metal, say what is missing. No model is loaded.
    """
    from lily.doctor import diagnose

    diagnosis = diagnose()
    sys.stdout.write((json.dumps(diagnosis.to_dict(), indent=2) if as_json else str(diagnosis)) + "\n")
