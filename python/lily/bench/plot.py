"""save_plot: a measurement as a bar chart."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from lily.bench.errors import BenchError

__all__ = ["save_plot"]


def save_plot(result: dict[str, Any], file: Path) -> None:
    """Write the chart in the format of the file's suffix.

    Raises
    ------
    BenchError
        matplotlib is not installed, or the file cannot be written.
    """
    try:
        figure_type: Any = importlib.import_module("matplotlib.figure").Figure
    except ImportError as error:
        raise BenchError("--plot needs the package matplotlib; install it with pip install matplotlib") from error
    engines = {"lily": result["lily"], **result.get("peer", {}).get("modes", {})}
    names = list(result["lily"])
    figure = figure_type(figsize=(2 + 1.5 * len(names), 4), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(engines)
    for index, (engine, figures) in enumerate(engines.items()):
        label = engine if engine == "lily" else f"llama.cpp, {engine}"
        places = [place + index * width for place in range(len(names))]
        axes.bar(places, [figures[name]["median"] for name in names], width, label=label)
    axes.set_xticks([place + 0.4 - width / 2 for place in range(len(names))], names)
    axes.set_ylabel("tokens a second")
    axes.legend()
    try:
        figure.savefig(file)
    except (OSError, ValueError) as error:
        raise BenchError(f"{file}: the plot cannot be written ({error})") from error
