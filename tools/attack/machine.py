"""How busy the machine is, by which times are judged that a server keeps on an idle one."""

from __future__ import annotations

import os

__all__ = ["busy"]


def busy() -> float:
    """How many times as long work takes as on an idle machine: what wants to run, for each processor; at least 1."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
