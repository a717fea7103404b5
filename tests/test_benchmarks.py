"""The benchmark scripts run, and README's picture is what they draw from the committed results."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


def load(name):
    specification = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_the_picture_shows_the_results():
    for theme in ("light", "dark"):
        picture = (BENCHMARKS.parent / "docs" / "images" / f"speed-{theme}.svg").read_text()
        figures = json.loads((BENCHMARKS / "results" / "bench-cpu.json").read_text())
        for part in ("prefill", "decode"):
            for engine in ("lily", "llama.cpp"):
                for value in figures[part][engine]:
                    assert f">{value:.1f}</text>" in picture


def test_results_agree_with_the_documentation():
    page = (BENCHMARKS.parent / "docs" / "performance.md").read_text()
    for name, form in (("bench-cpu", "{:.1f}"), ("bench-h200", "{:,}")):
        figures = json.loads((BENCHMARKS / "results" / f"{name}.json").read_text())
        for part in ("prefill", "decode"):
            for place, tokens in enumerate(figures[part]["tokens"]):
                lily = form.format(figures[part]["lily"][place])
                rows = [
                    line
                    for line in page.splitlines()
                    if line.startswith((f"| {part} {tokens} | {lily} ", f"| {tokens:,} | {lily} "))
                ]
                assert rows and any(form.format(figures[part]["llama.cpp"][place]) in row for row in rows), (
                    part,
                    tokens,
                )


def test_comparing_commits_reports_ratios_within_rounds():
    compare = load("compare_commits")
    rounds = [
        [{"load, ms": 2.0}, {"load, ms": 1.0}],
        [{"load, ms": 8.0}, {"load, ms": 6.0}],
        [{"load, ms": 4.0}, {"load, ms": 4.0}],
    ]
    line = compare.table(rounds).splitlines()[1].split()
    assert line[2:] == ["4", "4", "0.750", "(0.500", "to", "1.000)"]


@pytest.mark.parametrize("workload", ["engine", "server"])
def test_workloads_print_figures(workload, monkeypatch, capsys):
    """With few repetitions: that they run, not what they measure."""
    pytest.importorskip("lily._core", reason="needs the built package")
    source = (BENCHMARKS / "workloads" / f"{workload}.py").read_text()
    for name, few in (("LOADS", 1), ("PROMPT", 8), ("STEPS", 2), ("REPEATS", 1), ("WARM", 8), ("REQUESTS", 8)):
        lines = [f"{name} = {few}" if line.startswith(f"{name} = ") else line for line in source.splitlines()]
        source = "\n".join(lines)
    monkeypatch.setattr(sys, "argv", [workload])
    exec(compile(source, workload, "exec"), {"__name__": "__main__"})
    figures = json.loads(capsys.readouterr().out)
    assert figures and all(value >= 0 for value in figures.values())
