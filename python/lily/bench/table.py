"""render: a measurement as a table."""

from __future__ import annotations

from typing import Any

__all__ = ["render"]


def render(result: dict[str, Any]) -> str:
    """Rates in tokens a second as a Markdown table, and the machine's figures below it."""
    modes = result.get("peer", {}).get("modes", {})
    header = ["tok/s", "lily", *(f"llama.cpp, {mode}" for mode in modes)]
    header += ["ratio"] * bool(modes) + ["roof", "share of roof"]
    rows = [header]
    for name, figures in result["lily"].items():
        roof = result["roof"].get(name)
        row = [name, _figure(figures), *(_figure(mode[name]) for mode in modes.values())]
        if modes:
            row.append(f"{result['ratio'][name]:.2f}")
        if roof and "tokens_per_second" in roof:
            rate = roof["tokens_per_second"]
            row += [f"{rate:.1f}", f"{100 * figures['median'] / rate:.0f} %"]
        else:
            row += ["", ""]
        rows.append(row)
    widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
    rows.insert(1, ["-" * width for width in widths])
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    return "\n".join([*lines, "", *_machine(result)]) + "\n"


def _figure(figures: dict[str, Any]) -> str:
    return f"{figures['median']:.1f} ({figures['min']:.1f} - {figures['max']:.1f})"


def _machine(result: dict[str, Any]) -> list[str]:
    engine = f"{result['backend']} backend"
    if result["backend"] == "cpu":
        engine += f", {result['isa']} kernels, {result['threads']} threads"
    lines = [f"{engine}, loaded in {1e3 * result['load_seconds']:.0f} ms"]
    for threads, rate in result["bandwidth_bytes_per_second"].items():
        lines.append(f"memory read bandwidth, threads: {threads}: {rate / 1e9:.1f} GB/s")
    for name, roof in result["roof"].items():
        lines.append(f"{name}: {roof['bytes']['total'] / 1e6:.1f} MB a token")
    memory = result["memory_bytes"]
    if memory:
        own, mapped = memory["anonymous"] / 1e6, memory["file_backed"] / 1e6
        lines.append(f"resident: {own:.0f} MB anonymous, {mapped:.0f} MB of mapped files")
    return lines
