"""Lily: an embeddable engine for Qwen3.6-35B-A3B and the other models of its family."""

from __future__ import annotations

from lily.interpreters import require_main_interpreter

require_main_interpreter()

# ruff: noqa: E402 -- what follows loads the native module
from lily import errors
from lily._version import __version__
from lily.bench.ablation import ablate
from lily.checkpoint import Plan, plan
from lily.engine_options import available_backends
from lily.errors import LilyError
from lily.model import Model
from lily.options import Options
from lily.sampling import Sampling
from lily.session import Session
from lily.snapshot import Snapshot
from lily.step_report import step_report

__all__ = [
    "LilyError",
    "Model",
    "Options",
    "Plan",
    "Sampling",
    "Session",
    "Snapshot",
    "__version__",
    "ablate",
    "available_backends",
    "errors",
    "plan",
    "step_report",
]
