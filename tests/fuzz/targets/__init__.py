"""All targets by name."""

from __future__ import annotations

from fuzz.target import Target
from fuzz.targets import arguments, checkpoints, grammars, output, prompts, requests, schemas, sessions, side_files

__all__ = ["TARGETS"]

_MODULES = (checkpoints, side_files, sessions, requests, schemas, grammars, output, prompts, arguments)
TARGETS: dict[str, Target] = {target.name: target for module in _MODULES for target in module.TARGETS}
