"""Refuses subinterpreters, in which the native module cannot work."""

from __future__ import annotations

import importlib

__all__ = ["require_main_interpreter"]

_MODULES = ("_interpreters", "_xxsubinterpreters")  # since and before Python 3.13


def require_main_interpreter() -> None:
    """
    Raises
    ------
    ImportError
        The caller runs in a subinterpreter.
    """
    for name in _MODULES:
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        if module.get_current() != module.get_main():
            raise ImportError(
                "lily cannot be used in a subinterpreter: its threads and callbacks belong to the main one; import it "
                "there, or in a separate process"
            )
        return
