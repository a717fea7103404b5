"""Models: weights that are loaded, the options of the engine that runs them, and what they know of themselves."""

from __future__ import annotations

from lily.model.model import Model

__all__ = ["Model"]
