"""ablate: the gain of every mechanism of the GPU engine, measured by turning off one at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lily import _core
from lily.bench.engine import LilyEngine
from lily.bench.samples import Samples
from lily.checks.arguments import as_items
from lily.checks.whole_numbers import whole_number
from lily.errors import ConfigError
from lily.model.gpu_options import MECHANISMS, GpuOptions, Mechanism

if TYPE_CHECKING:
    from lily.model import Model

__all__ = ["Ablation", "AblationRow", "ablate"]

# Default lengths for each mechanism: those at which it was published to matter.
_LENGTHS: dict[str, tuple[int, ...]] = {
    "P1": (512,),
    "P2": (512,),
    "P3": (2048,),
    "P4": (2048,),
    "D5": (3840,),
    "D6": (32768,),
    "D7": (32768, 65536, 131072),
}
_OTHER_LENGTHS = (4096,)


@dataclass(frozen=True)
class AblationRow:
    """One mechanism at one length.

    `on` and `off` are tokens a second: medians, lowest and highest of the runs. `kernels` and `stages` count one pass
    (a decode step or a prompt's last chunk) with the mechanism on and off.
    """

    mechanism: str
    phase: str
    title: str
    length: int
    on: Samples
    off: Samples
    kernels: tuple[int, int]
    stages: tuple[int, int]

    @property
    def gain(self) -> float:
        """The median rate with the mechanism divided by that without it, minus 1."""
        return self.on.median / self.off.median - 1.0

    def to_dict(self) -> dict[str, Any]:
        """All figures, ready for JSON."""
        fields = {name: getattr(self, name) for name in ("mechanism", "phase", "title", "length")}
        counts = {"kernels": list(self.kernels), "stages": list(self.stages)}
        return {**fields, "on": self.on.to_dict(), "off": self.off.to_dict(), "gain": round(self.gain, 4), **counts}


@dataclass(frozen=True)
class Ablation:
    """All rows, and what they were measured on."""

    model: str
    backend: str
    rows: tuple[AblationRow, ...]

    def to_dict(self) -> dict[str, Any]:
        """All figures, ready for JSON."""
        return {"model": self.model, "backend": self.backend, "rows": [row.to_dict() for row in self.rows]}

    def __str__(self) -> str:
        header = ["", "mechanism", "phase", "tokens", "on, tok/s", "off, tok/s", "gain", "kernels", "stages"]
        table = [header] + [
            [
                row.mechanism,
                row.title,
                row.phase,
                f"{row.length:,}",
                f"{row.on.median:,.1f}",
                f"{row.off.median:,.1f}",
                f"{100 * row.gain:+.1f} %",
                f"{row.kernels[0]:,} / {row.kernels[1]:,}",
                f"{row.stages[0]:,} / {row.stages[1]:,}",
            ]
            for row in self.rows
        ]
        widths = [max(len(line[column]) for line in table) for column in range(len(header))]
        table.insert(1, ["-" * width for width in widths])
        lines = (
            "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"
            for line in table
        )
        return "\n".join(lines)


def ablate(
    model: Model | str | Path,
    *,
    backend: str = "auto",
    mechanisms: Sequence[str] | None = None,
    prompt: Sequence[int] | None = None,
    context: Sequence[int] | None = None,
    decode: int = 32,
    runs: int = 5,
    report: Callable[[str], None] | None = None,
) -> Ablation:
    """Measure pairs of configurations that differ in one switch, alternating.

    Parameters
    ----------
    model : Model, str or Path
        A loaded model on the GPU engine whose sessions are not in use, or an argument for `Model.load`.
    backend : str
        If the model is loaded here; "cpu" has no switches.
    mechanisms : sequence of str, optional
        Names as in `lily.GpuOptions.without`; all by default.
    prompt, context : sequence of int, optional
        Lengths of prompts for the mechanisms of prefill, tokens before decoding for those of decode; by default, the
        lengths at which each mechanism was published, up to the model's context.
    decode : int
        Tokens of one decoding run.
    runs : int
        Runs of each configuration, alternating.
    report : callable, optional
        Called with a line of text about the current run.

    Raises
    ------
    ConfigError
        There is no such mechanism, no length fits the model, or the backend has no switches.
    BenchError
        Equal runs produced different tokens.
    """
    from lily.model import Model

    chosen = _chosen(mechanisms)
    if isinstance(model, Model):
        return _ablate(model, chosen, prompt, context, decode, runs, report)
    with Model.load(model, backend=backend, prefix_cache_bytes=0) as loaded:
        return _ablate(loaded, chosen, prompt, context, decode, runs, report)


def _chosen(names: Sequence[str] | None) -> dict[str, Mechanism]:
    if names is None:
        return MECHANISMS
    names = as_items("mechanisms", names, "a list of names as ['D4']", ConfigError)
    if not names:
        raise ConfigError("mechanisms must be a list of names as ['D4'], but is empty")
    # GpuOptions.without reports the names that there are not.
    changed = GpuOptions().without(*names)
    fields = {
        field.name
        for field in dataclasses.fields(GpuOptions)
        if getattr(changed, field.name) != getattr(GpuOptions(), field.name)
    }
    return {name: mechanism for name, mechanism in MECHANISMS.items() if mechanism.field in fields}


def _ablate(
    model: Model,
    mechanisms: dict[str, Mechanism],
    prompt: Sequence[int] | None,
    context: Sequence[int] | None,
    decode: int,
    runs: int,
    report: Callable[[str], None] | None,
) -> Ablation:
    if model.backend == "cpu":
        raise ConfigError('the cpu backend has no switches to turn off; use backend="metal", "cuda" or "sim"')
    decode = whole_number("decode", decode, 1, model.max_context - 2)
    runs = whole_number("runs", runs, 1)
    cases = []
    for name, mechanism in mechanisms.items():
        given = prompt if mechanism.phase == "prefill" else context
        lengths = _LENGTHS.get(name, _OTHER_LENGTHS) if given is None else given
        if given is not None:
            lengths = _checked_lengths(mechanism.phase, given, model.max_context - decode)
        cases += [(name, mechanism, length) for length in lengths if length + decode < model.max_context]
    if not cases:
        raise ConfigError(f"no length fits a context of {model.max_context:,} tokens; give prompt and context")
    bench = _Bench(model, decode, runs, report or (lambda text: None))
    try:
        rows = tuple(bench.row(*case) for case in cases)
    finally:
        bench.set_options(model.gpu_options)
    return Ablation(str(model.checkpoint.directory), model.backend, rows)


def _checked_lengths(phase: str, lengths: Sequence[int], limit: int) -> tuple[int, ...]:
    if isinstance(lengths, str) or not isinstance(lengths, Sequence):
        raise ConfigError(f"lengths for {phase} must be a list of whole numbers as [512], not {lengths!r}")
    return tuple(whole_number(f"a length for {phase}", length, 1, limit - 1) for length in lengths)


class _Bench:
    """Runs one model under changing options."""

    def __init__(self, model: Model, decode: int, runs: int, report: Callable[[str], None]) -> None:
        self._model = model
        self._decode = decode
        self._runs = runs
        self._report = report

    def set_options(self, options: GpuOptions) -> None:
        _core.gpu.set_options(self._model.core, options.to_core())

    def row(self, name: str, mechanism: Mechanism, length: int) -> AblationRow:
        # D7 begins at a threshold; below that there is nothing to turn off.
        given = self._model.gpu_options
        threshold = min(given.blocked_attention_threshold, length)
        base = dataclasses.replace(given, blocked_attention_threshold=threshold)
        if getattr(base, mechanism.field) == mechanism.off:  # the model was loaded without it
            on: Any = getattr(GpuOptions(), mechanism.field)
            base = dataclasses.replace(base, **{mechanism.field: on})
        sides = (base, base.without(name))
        engines = tuple(LilyEngine(self._model, self._model.config.vocab_size) for _ in sides)
        samples = (Samples(), Samples())
        counts = [(0, 0), (0, 0)]
        for run in range(self._runs + 1):  # the first warms up
            self._report(f"{name} at {length:,} tokens: " + ("warm-up" if run == 0 else f"run {run} of {self._runs}"))
            for side, options in enumerate(sides):
                self.set_options(options)
                engine = engines[side]
                if mechanism.phase == "prefill":
                    tokens, seconds = length, engine.prefill(length)
                else:
                    tokens, seconds = self._decode, engine.decode(length, self._decode)
                if run:
                    samples[side].add(tokens, seconds)
                counters = _core.gpu.counters(self._model.core)
                last = counters.prefill if mechanism.phase == "prefill" else counters.decode
                counts[side] = (last.kernels, last.stages)
        return AblationRow(
            name,
            mechanism.phase,
            mechanism.title,
            length,
            *samples,
            kernels=(counts[0][0], counts[1][0]),
            stages=(counts[0][1], counts[1][1]),
        )
