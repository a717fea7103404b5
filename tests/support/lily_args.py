"""The constants of metal/lily_args.h by their names: launch sizes, indices of function constants and their values."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

HEADER = Path(__file__).resolve().parents[2] / "metal" / "lily_args.h"


def read_constants(text: str) -> dict[str, int]:
    """Every ``kName = number`` of the header's enums."""
    return {name: int(number) for name, number in re.findall(r"^  (k\w+) = (\d+),", text, re.M)}


ARGS = SimpleNamespace(**read_constants(HEADER.read_text()))
