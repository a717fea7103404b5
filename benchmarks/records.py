"""What every script here has in common: the option --json, and the file that it writes."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shlex
import sys
from pathlib import Path
from typing import Any


def parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with the script's own description and --json."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--json", type=Path, help="also write the figures to this file, such as results/NAME.json")
    return made


def write(path: Path | None, figures: dict[str, Any]) -> None:
    """Write figures with the command, the machine and the date; nothing without a path."""
    if path is None:
        return
    command = shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    head = {"command": command, "date": datetime.date.today().isoformat(), "machine": machine()}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**head, **figures}, indent=1) + "\n", encoding="utf-8")


def machine() -> dict[str, Any]:
    """The machine that this runs on."""
    return {"processor": processor(), "cores": os.cpu_count(), "system": platform.platform()}


def processor() -> str:
    """What the processor calls itself."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
