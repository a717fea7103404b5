"""verify: checks that this machine computes the model correctly, kernel by kernel and as a whole."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lily.checkpoint import read_checkpoint, resolve_source
from lily.doctor import Diagnosis, diagnose
from lily.model.engine_options import choose_backend
from lily.verify.cpu import check_products
from lily.verify.end_to_end import Agreement, compare_backends
from lily.verify.kernels import KernelCheck, check_kernels

__all__ = ["Verification", "verify"]


@dataclasses.dataclass(frozen=True)
class Verification:
    """What was checked, on which machine, and the outcome. Its text can be pasted into a bug report."""

    model: str
    backend: str
    machine: Diagnosis
    kernels: tuple[KernelCheck, ...]
    end_to_end: Agreement

    @property
    def passed(self) -> bool:
        """Whether everything agreed."""
        return all(check.passed for check in self.kernels) and self.end_to_end.passed

    def to_dict(self) -> dict[str, Any]:
        """All figures, ready for JSON."""
        return {
            "passed": self.passed,
            "model": self.model,
            "backend": self.backend,
            "machine": self.machine.to_dict(),
            "kernels": [check.to_dict() for check in self.kernels],
            "end_to_end": self.end_to_end.to_dict(),
        }

    def __str__(self) -> str:
        width = max((len(check.kernel) for check in self.kernels), default=0)
        lines = [f"lily verify {self.model} --backend {self.backend}", "", str(self.machine), ""]
        lines.append("Kernels against references in double precision (error 1: all that rounding accounts for):")
        for check in self.kernels:
            constants = " ".join(f"{index}={value}" for index, value in sorted(check.constants.items()))
            state = f"FAILED: {check.problem}" if check.problem else "ok"
            lines.append(
                f"  {check.kernel:{width}}  error {check.worst:8.3g}  {check.values:>9,} values  {state}  {constants}"
            )
        whole = self.end_to_end
        lines += [
            "",
            f"The whole model against {whole.reference}: {'ok' if whole.passed else 'FAILED'}",
            f"  prompt of {whole.positions} positions: log-probabilities differ by {whole.log_probability:.4f} nats on "
            f"average (at most {whole.limits.log_probability}), same best token at {whole.scored_top1:.1%} "
            f"(at least {whole.limits.top1:.0%})",
            f"  {whole.steps} single steps: divergence {whole.divergence:.5f} nats "
            f"(at most {whole.limits.divergence}), same best token at {whole.step_top1:.1%}",
            "",
            f"{'PASSED' if self.passed else 'FAILED'}: {sum(check.passed for check in self.kernels)} of "
            f"{len(self.kernels)} kernel checks, the whole model {'agrees' if whole.passed else 'does not agree'}",
        ]
        return "\n".join(lines)


def verify(source: str | Path, *, backend: str = "auto", report: Callable[[str], None] | None = None) -> Verification:
    """Check a backend on this machine with a model's own weights, against references on the CPU.

    Parameters
    ----------
    source : str or Path
        As for `lily.Model.load`.
    backend : str
        As for `lily.Model.load`; "cpu" checks its products for every instruction set.
    report : callable, optional
        Called with a line of text about what has been done.

    Raises
    ------
    BackendError
        The backend is not available, or its device failed.
    """
    tell = report if report is not None else _silent
    chosen = choose_backend(backend)
    machine = diagnose()
    checkpoint = read_checkpoint(resolve_source(source))
    kernels = check_products() if chosen == "cpu" else check_kernels(checkpoint, chosen, tell)
    return Verification(str(source), chosen, machine, tuple(kernels), compare_backends(checkpoint, chosen, tell))


def _silent(line: str) -> None:
    del line
