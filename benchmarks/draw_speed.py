"""Draws README's picture, decode and prefill beside llama.cpp, from the results in this folder.

    python benchmarks/draw_speed.py          # writes docs/images/speed-light.svg and speed-dark.svg

Needs matplotlib (the extra `plot`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
# Equal figures make equal files, with text as text.
STYLE = {"svg.hashsalt": "lily", "font.family": ["sans-serif"], "svg.fonttype": "none"}

from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.ticker import FuncFormatter, NullLocator  # noqa: E402

HERE = Path(__file__).resolve().parent
IMAGES = HERE.parent / "docs" / "images"
THEMES = {
    "light": {"text": "#1f2328", "grid": "#d8dee4", "lily": "#8250df", "llama.cpp": "#8c959f"},
    "dark": {"text": "#e6edf3", "grid": "#30363d", "lily": "#b78cff", "llama.cpp": "#7d8590"},
}


@matplotlib.rc_context(STYLE)
def main() -> None:
    """Draw one file for each theme."""
    card, processor = (
        json.loads((HERE / "results" / f"{name}.json").read_text()) for name in ("bench-h200", "bench-cpu")
    )
    IMAGES.mkdir(exist_ok=True)
    for theme, colours in THEMES.items():
        figure, axes = plt.subplots(1, 4, figsize=(12.5, 3.3), width_ratios=(3, 3, 2, 2))
        curves(axes[0], card["prefill"], "Prefill, NVIDIA H200", "prompt, tokens", colours)
        curves(axes[1], card["decode"], "Decode, NVIDIA H200", "context, tokens", colours)
        bars(axes[2], processor["prefill"], "Prefill, 2 CPU cores", "prompt, tokens", colours)
        bars(axes[3], processor["decode"], "Decode, 2 CPU cores", "context, tokens", colours)
        axes[0].set_ylabel("tokens a second", color=colours["text"])
        axes[0].legend(frameon=False, labelcolor=colours["text"], loc="upper left", fontsize=9)
        figure.tight_layout()
        figure.savefig(IMAGES / f"speed-{theme}.svg", transparent=True, metadata={"Date": None})
        plt.close(figure)


def engines(figures: dict[str, Any]) -> dict[str, list[float]]:
    """Tokens a second of each engine; of llama.cpp, the better of the ways in which it was run."""
    forms = [values for name, values in figures.items() if name.startswith("llama.cpp")]
    return {"lily": figures["lily"], "llama.cpp": [max(values) for values in zip(*forms, strict=True)]}


def curves(axes: Axes, figures: dict[str, Any], title: str, label: str, colours: dict[str, str]) -> None:
    """One line for each engine over lengths of doubling steps."""
    for engine, values in engines(figures).items():
        style = {"color": colours[engine], "marker": "o", "markersize": 4, "linewidth": 2}
        axes.plot(figures["tokens"], values, label=engine, gid=f"{title}: {engine}", **style)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda tokens, _: f"{tokens / 1024:g}K" if tokens >= 1024 else f"{tokens:g}")
    )
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylim(0, 1.22 * max(figures["lily"]))
    dress(axes, title, label, colours)


def bars(axes: Axes, figures: dict[str, Any], title: str, label: str, colours: dict[str, str]) -> None:
    """A pair of bars for each length, with its figures on top."""
    for index, (engine, values) in enumerate(engines(figures).items()):
        places = [place + 0.4 * index - 0.2 for place in range(len(figures["tokens"]))]
        drawn = axes.bar(places, values, 0.36, color=colours[engine], label=engine)
        axes.bar_label(drawn, fmt="%.1f", color=colours["text"], fontsize=8, padding=2)
    axes.set_xticks(range(len(figures["tokens"])), [f"{tokens:,}" for tokens in figures["tokens"]])
    axes.set_ylim(0, 1.18 * max(figures["lily"]))
    dress(axes, title, label, colours)


def dress(axes: Axes, title: str, label: str, colours: dict[str, str]) -> None:
    """Title, label and grid in the theme's colours."""
    axes.set_title(title, color=colours["text"], fontsize=11)
    axes.set_xlabel(label, color=colours["text"], fontsize=9)
    axes.tick_params(colors=colours["text"], labelsize=8, length=0)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.grid(axis="y", color=colours["grid"], linewidth=0.8)
    axes.set_axisbelow(True)
    for name, spine in axes.spines.items():
        spine.set_visible(name == "bottom")
        spine.set_color(colours["grid"])


if __name__ == "__main__":
    main()
