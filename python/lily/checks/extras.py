"""require_extra: says what to install if the packages of an extra are missing."""

from __future__ import annotations

import importlib.util

from lily._version import DISTRIBUTION
from lily.errors import MissingExtraError

__all__ = ["require_extra"]


def require_extra(extra: str, *packages: str) -> None:
    """Find out whether an extra's packages are installed, without importing them.

    Raises
    ------
    MissingExtraError
        One is not; the message says how to install it.
    """
    for package in packages:
        try:
            found = importlib.util.find_spec(package) is not None
        except (ImportError, ValueError):  # a blocked import, or a broken module
            found = False
        if not found:
            raise MissingExtraError(
                f"this needs the package {package}; install it with pip install '{DISTRIBUTION}[{extra}]'"
            )
