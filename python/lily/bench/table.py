"""render, columns: a measurement as a table."""

from __future__ import annotations

from typing import Any

__all__ = ["columns", "render"]


def columns(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The figures of Lily and of each peer's modes, by column title."""
    found = {"lily": result["lily"]}
    for peer in result.get("peers", ()):
        for mode, figures in peer["modes"].items():
            found[f"{peer['name']}, {mode}" if mode else peer["name"]] = figures
    return found


def render(result: dict[str, Any]) -> str:
    """Rates in tokens a second as a Markdown table, and the machine's figures below it."""
    engines = columns(result)
    has_roof = any("tokens_per_second" in roof for roof in result["roof"].values())
    header = ["tok/s", *engines] + ["ratio"] * ("ratio" in result) + ["roof", "share of roof"] * has_roof
    rows = [header]
    for name, figures in result["lily"].items():
        row = [name, *(_figure(of_engine.get(name)) for of_engine in engines.values())]
        if "ratio" in result:
            row.append(f"{result['ratio'][name]:.2f}" if name in result["ratio"] else "")
        if has_roof:
            rate = result["roof"].get(name, {}).get("tokens_per_second")
            row += [f"{rate:.1f}", f"{100 * figures['median'] / rate:.0f} %"] if rate else ["", ""]
        rows.append(row)
    widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
    rows.insert(1, ["-" * width for width in widths])
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    return "\n".join([*lines, "", *_machine(result)]) + "\n"


def _figure(figures: dict[str, Any] | None) -> str:
    if figures is None:
        return "-"
    return f"{figures['median']:.1f} ({figures['min']:.1f} - {figures['max']:.1f})"


def _machine(result: dict[str, Any]) -> list[str]:
    engine = f"{result['backend']} backend"
    if result["backend"] == "cpu":
        engine += f", {result['isa']} kernels, {result['threads']} threads"
    lines = [f"{engine}, loaded in {1e3 * result['load_seconds']:.0f} ms"]
    lines += [f"{peer['name']}: {peer['version']}" for peer in result.get("peers", ())]
    for threads, rate in result["bandwidth_bytes_per_second"].items():
        lines.append(f"memory read bandwidth, threads: {threads}: {rate / 1e9:.1f} GB/s")
    for name, roof in result["roof"].items():
        lines.append(f"{name}: {roof['bytes']['total'] / 1e6:.1f} MB a token")
    faults = ((name, sum(each["major_faults"] for each in of.values())) for name, of in columns(result).items())
    if result["backend"] == "cpu":
        lines.append(
            "pages read from the disk in timed runs: " + ", ".join(f"{name} {count}" for name, count in faults)
        )
    memory = result["memory_bytes"]
    if memory:
        own, mapped = memory["anonymous"] / 1e6, memory["file_backed"] / 1e6
        lines.append(f"resident: {own:.0f} MB anonymous, {mapped:.0f} MB of mapped files")
    return lines
