"""Lily: an embeddable engine for Qwen3.6-35B-A3B and the other models of its family."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from lily.checks.interpreters import require_main_interpreter

require_main_interpreter()

# ruff: noqa: E402 -- what follows loads the native module
from lily import errors
from lily._version import __version__
from lily.bench.ablation import ablate
from lily.bench.step_report import step_report
from lily.checkpoint import Plan, plan
from lily.errors import LilyError
from lily.model import Model
from lily.model.engine_options import available_backends
from lily.model.gpu_options import GpuOptions
from lily.sampling import Sampling
from lily.session import Session, Snapshot

if TYPE_CHECKING:
    Options = GpuOptions


def __getattr__(name: str) -> object:
    if name == "Options":
        warnings.warn("lily.Options is called lily.GpuOptions now", DeprecationWarning, stacklevel=2)
        return GpuOptions
    raise AttributeError(f"module 'lily' has no attribute {name!r}")


__all__ = [
    "GpuOptions",
    "LilyError",
    "Model",
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
