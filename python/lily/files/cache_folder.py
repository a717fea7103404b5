"""The user's cache folder, for files that Lily can always make again."""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["user_cache_folder"]


def user_cache_folder() -> Path | None:
    """``$LILY_CACHE_DIR``, or ``lily`` in the system's cache folder; None if there is none."""
    chosen = os.environ.get("LILY_CACHE_DIR", "")
    if chosen:
        return Path(chosen)
    home = os.environ.get("HOME", "")
    if sys.platform == "darwin":
        return Path(home, "Library", "Caches", "lily") if home.startswith("/") else None
    caches = os.environ.get("XDG_CACHE_HOME", "")
    if caches.startswith("/"):
        return Path(caches, "lily")
    return Path(home, ".cache", "lily") if home.startswith("/") else None
