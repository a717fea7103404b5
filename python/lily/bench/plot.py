"""check_plot, save_plot: draws a measurement as curves over the number of tokens, prompts beside decoding."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from lily.bench.errors import BenchError
from lily.bench.table import columns

__all__ = ["check_plot", "save_plot"]

_PANELS = {"prefill": "prompt, tokens", "decode": "decoding after, tokens"}


def check_plot(file: Path) -> None:
    """Find out before a long measurement whether its plot can be drawn.

    Raises
    ------
    BenchError
        matplotlib is not installed, or a file of this name cannot be written.
    """
    formats = _new_figure().canvas.get_supported_filetypes()
    if file.suffix[1:].lower() not in formats:
        raise BenchError(f"{file}: the plot cannot be written (its name must end in one of: {', '.join(formats)})")
    if not file.parent.is_dir():
        raise BenchError(f"{file}: the plot cannot be written (there is no folder {file.parent})")


def save_plot(result: dict[str, Any], file: Path) -> None:
    """Write the curves, medians with the lowest and highest run, in the format of the file's suffix.

    Raises
    ------
    BenchError
        matplotlib is not installed, or the file cannot be written.
    """
    figure = _new_figure()
    for axes, (phase, title) in zip(figure.subplots(1, 2), _PANELS.items(), strict=True):
        _draw(axes, phase, title, columns(result))
    figure.axes[0].legend()
    try:
        figure.savefig(file)
    except (OSError, ValueError) as error:
        raise BenchError(f"{file}: the plot cannot be written ({error})") from error


def _new_figure() -> Any:
    try:
        figure_type: Any = importlib.import_module("matplotlib.figure").Figure
    except ImportError as error:
        raise BenchError('--plot needs matplotlib; install it with pip install "lily-engine[plot]"') from error
    return figure_type(figsize=(11, 4.5), layout="constrained")


def _draw(axes: Any, phase: str, title: str, engines: dict[str, dict[str, Any]]) -> None:
    ticks: set[int] = set()
    for engine, figures in engines.items():
        points = sorted((int(name.split()[1]), figure) for name, figure in figures.items() if name.startswith(phase))
        lengths = [length for length, _ in points]
        line = axes.plot(lengths, [figure["median"] for _, figure in points], marker="o", label=engine)[0]
        lowest, highest = ([figure[end] for _, figure in points] for end in ("min", "max"))
        axes.fill_between(lengths, lowest, highest, color=line.get_color(), alpha=0.2)
        ticks.update(lengths)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(ticks), [_short(tick) for tick in sorted(ticks)])
    axes.set_ylim(bottom=0)
    axes.set_xlabel(title)
    axes.set_ylabel("tokens a second")


def _short(tokens: int) -> str:
    return f"{tokens // 1024}K" if tokens % 1024 == 0 else str(tokens)
