"""lily step-report: kernels, stages and bytes of a decode step or a prompt chunk, planned without weights."""

from __future__ import annotations

import json
import sys
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from lily.bench.step_report import StepReport
from lily.bench.step_report import step_report as plan_step
from lily.cli import options
from lily.cli.command import command
from lily.model.gpu_options import GpuOptions

__all__ = ["step_report"]


class Phase(str, Enum):
    """What is planned."""

    decode = "decode"
    prefill = "prefill"


@command("""\
  lily step-report --config config.json --phase decode --context 4096
  lily step-report --config config.json --phase decode --context 4096 --off D3 --off D4 --json
  lily step-report --config config.json --phase prefill --rows 2048
""")
def step_report(
    config: Annotated[Path | None, typer.Option(help="The config.json of a checkpoint, or its directory.")] = None,
    phase: Annotated[Phase, typer.Option(help="One token, or one chunk of a prompt.")] = Phase.decode,
    context: Annotated[int, typer.Option(min=0, help="Tokens before the step.")] = 0,
    rows: Annotated[int | None, typer.Option(min=1, help="Tokens of the chunk (prefill only). [2048]")] = None,
    off: Annotated[
        list[str] | None, typer.Option(metavar="MECHANISM", help="Mechanism to turn off, such as P1 or D4a; or all.")
    ] = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Count kernels, dependent stages, barriers and bytes of one step of the GPU engine."""
    if config is None:
        raise typer.BadParameter("give the --config of a model")
    switches = GpuOptions().without(*(off or ()))
    report = plan_step(config, phase=phase.value, context=context, rows=rows, options=switches)
    if as_json:
        sys.stdout.write(json.dumps(report.to_dict(), indent=2) + "\n")
    else:
        sys.stdout.write(_text(report))


def _text(report: StepReport) -> str:
    what = "decode step" if report.phase == "decode" else f"prompt chunk of {report.rows:,} tokens"
    lines = [f"One {what} after {report.context:,} tokens"]
    lines += [
        f"  {name:<24}{value:>18,}"
        for name, value in (
            ("kernels", report.kernels),
            ("dependent stages", report.stages),
            ("barriers", report.barriers),
            ("CPU waits", report.waits),
            ("steps in flight", report.steps_in_flight),
            ("bytes read", report.bytes_read),
            *((f"  {kind}", size) for kind, size in report.read.items()),
            ("bytes written", report.bytes_written),
            *((f"  {kind}", size) for kind, size in report.written.items()),
            ("scratch bytes", report.scratch_bytes),
            ("  without sharing", report.scratch_bytes_unshared),
        )
    ]
    lines.append("Kernels")
    lines += [f"  {name:<34}{count:>8,}" for name, count in sorted(report.kernel_counts.items())]
    return "\n".join(lines) + "\n"
