"""The benchmark scripts run; README's picture and the page on performance show the committed results."""

import importlib.util
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


def load(name):
    specification = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def results(name):
    return json.loads((BENCHMARKS / "results" / f"{name}.json").read_text())


def engines(figures):
    peers = [values for name, values in figures.items() if name.startswith("llama.cpp")]
    return {"lily": figures["lily"], "llama.cpp": [max(values) for values in zip(*peers, strict=True)]}


@pytest.fixture(params=["light", "dark"])
def picture(request):
    return (BENCHMARKS.parent / "docs" / "images" / f"speed-{request.param}.svg").read_text()


@pytest.mark.parametrize("part", ["prefill", "decode"])
def test_the_picture_s_bars_have_the_results_on_top(picture, part):
    for values in engines(results("bench-cpu")[part]).values():
        assert all(f">{value:.1f}</text>" in picture for value in values)


@pytest.mark.parametrize("part", ["prefill", "decode"])
def test_the_picture_s_curves_are_as_high_as_the_results(picture, part):
    values, heights = [], []
    for engine, figures in engines(results("bench-h200")[part]).items():
        group = picture.partition(f'id="{part.capitalize()}, NVIDIA H200: {engine}"')[2]
        path = re.search(r'<path d="([^"]+)"', group)[1]
        heights += [float(y) for y in re.findall(r"[ML] \S+ (\S+)", path)]
        values += figures
    assert len(heights) == len(values)
    slope, origin = np.polyfit(values, heights, 1)
    assert np.allclose(slope * np.array(values) + origin, heights, atol=0.01) and slope < 0


def test_results_agree_with_the_documentation():
    page = (BENCHMARKS.parent / "docs" / "performance.md").read_text()
    for name, form in (("bench-cpu", "{:.1f}"), ("bench-h200", "{:,}")):
        for part in ("prefill", "decode"):
            figures = results(name)[part]
            both = engines(figures)
            for place, tokens in enumerate(figures["tokens"]):
                lily = form.format(both["lily"][place])
                rows = [
                    line
                    for line in page.splitlines()
                    if line.startswith((f"| {part} {tokens} | {lily} ", f"| {tokens:,} | {lily} "))
                ]
                assert rows and any(form.format(both["llama.cpp"][place]) in row for row in rows), (
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
