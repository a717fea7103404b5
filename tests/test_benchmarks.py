"""The benchmark scripts run; README's picture and the page on performance show the committed results."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
PAGE = (BENCHMARKS.parent / "docs" / "performance.md").read_text(encoding="utf-8")
NUMBER = r"[-+]?[\d,]+(?:\.\d+)?"


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))


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


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """The pictures that the script draws now."""
    pytest.importorskip("matplotlib", reason="needs the extra for plots")
    drawer = load("draw_speed")
    drawer.IMAGES = tmp_path_factory.mktemp("images")
    drawer.main()
    return drawer.IMAGES


@pytest.fixture(params=["committed light", "committed dark", "drawn light", "drawn dark"])
def picture(request):
    where, theme = request.param.split()
    folder = BENCHMARKS.parent / "docs" / "images" if where == "committed" else request.getfixturevalue("drawn")
    return (folder / f"speed-{theme}.svg").read_text()


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


def test_the_comparison_with_llama_cpp_agrees_with_the_page():
    for name, form in (("bench-cpu", "{:.1f}"), ("bench-h200", "{:,}")):
        for part in ("prefill", "decode"):
            figures = results(name)[part]
            both = engines(figures)
            for place, tokens in enumerate(figures["tokens"]):
                lowest, highest = figures["lowest and highest of lily"][place]
                lily = f"{form.format(both['lily'][place])} ({form.format(lowest)} - {form.format(highest)})"
                rows = [
                    line
                    for line in PAGE.splitlines()
                    if line.startswith((f"| {part} {tokens} | {lily} ", f"| {tokens:,} | {lily} "))
                ]
                assert rows and any(form.format(both["llama.cpp"][place]) in row for row in rows), (part, tokens)


def section_of(name):
    """The page from where a file of results is named to the next one."""
    after = PAGE.partition(f"Results: `benchmarks/results/{name}.json`")[2]
    assert after, f"{name} is not on the page"
    return after.partition("\nResults: ")[0]


def cell(text):
    """A number, several numbers (x, y or x (y - z)), or the text."""
    text = text.strip().replace("**", "")
    for form in (f"({NUMBER})", rf"({NUMBER}) \(({NUMBER}) - ({NUMBER})\)", f"({NUMBER}), ({NUMBER})"):
        if matched := re.fullmatch(form, text):
            numbers = [float(one.replace(",", "")) for one in matched.groups()]
            return numbers if len(numbers) > 1 else numbers[0]
    return text


def tables(text):
    """The tables of a page, each a list of rows of cells, the head first."""
    blocks = re.findall(r"(?:^\|.*\n)+", text, re.M)
    rows = [[[cell(one) for one in line.strip("|").split("|")] for line in block.splitlines()] for block in blocks]
    return [[table[0], *table[2:]] for table in rows]


NAMES = sorted(path.stem for path in (BENCHMARKS / "results").glob("*.json"))
TABLES = [name for name in NAMES if "tables" in results(name)]


@pytest.mark.parametrize("name", NAMES)
def test_results_say_where_they_come_from(name):
    record = results(name)
    assert record.keys() >= {"command", "machine", "date"}
    for program in re.findall(r"(?:python|bash) (\S+\.(?:py|sh))", record["command"]):
        assert (BENCHMARKS.parent / program).is_file(), program
    assert not record.get("transcribed") or record["page"] == "docs/performance.md"


@pytest.mark.parametrize("name", TABLES)
def test_tables_of_results_are_those_of_the_page(name):
    assert [[one["columns"], *one["rows"]] for one in results(name)["tables"]] == tables(section_of(name))


@pytest.mark.parametrize("name", [name for name in NAMES if results(name).get("transcribed")])
def test_other_figures_of_results_are_on_the_page(name):
    section = section_of(name)
    for what, value in results(name).get("figures", {}).items():
        for number in value if isinstance(value, list) else [value]:
            shown = number if isinstance(number, str) else f"{number:,}"
            assert re.search(rf"(?<![\d.,]){re.escape(shown)}(?![\d]|[.,]\d)", section), (what, number)


def test_every_table_of_figures_on_the_page_has_results():
    before = PAGE.partition("\nResults: ")[0]
    assert tables(before) == []
    assert set(re.findall(r"benchmarks/results/([\w-]+)\.json", PAGE)) == set(NAMES)


def test_comparing_commits_reports_ratios_within_rounds():
    compare = load("compare_commits")
    rounds = [
        [{"load, ms": 2.0}, {"load, ms": 1.0}],
        [{"load, ms": 8.0}, {"load, ms": 6.0}],
        [{"load, ms": 4.0}, {"load, ms": 4.0}],
    ]
    line = compare.table(rounds).splitlines()[1].split()
    assert line[2:] == ["4", "4", "0.750", "(0.500", "to", "1.000)"]


def run(monkeypatch, tmp_path, name, *arguments):
    """The figures that a script writes; they are those of the program, so that only their presence is checked."""
    file = tmp_path / "figures.json"
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, arguments), "--json", str(file)])
    load(name).main()
    record = json.loads(file.read_text())
    assert record["command"].startswith(f"python benchmarks/{name}.py") and record["machine"]["cores"]
    return record


@pytest.fixture(scope="module")
def built():
    pytest.importorskip("lily._core", reason="needs the built package")


def test_long_context(built, monkeypatch, tmp_path):
    size = ["--tokens", 24, "--part", 8, "--turns", 1, "--steps", 2, "--threads", 1]
    figures = run(monkeypatch, tmp_path, "long_context", "lily-tiny", *size)["figures"]
    assert len(figures) == 9 and all(value > 0 for value in figures.values())


def test_instruction_sets(built, monkeypatch, tmp_path):
    size = ["--rounds", 1, "--prompt", 8, "--context", 2, "--decode", 2, "--runs", 1, "--threads", 1]
    record = run(monkeypatch, tmp_path, "instruction_sets", "lily-tiny", "--sets", "portable", *size)
    assert record["medians"]["portable"].keys() == {"prefill 8", "decode 2"}


def test_first_hash(built, monkeypatch, tmp_path):
    import lily

    with lily.Model.load("lily-tiny") as model:
        folder = model.checkpoint.directory
    monkeypatch.setenv("LILY_CACHE_DIR", str(tmp_path))  # the script sets it; set back at the end
    assert run(monkeypatch, tmp_path, "first_hash", folder)["figures"][folder.name]["bytes"] > 10**7


def test_prompt_attention(built, monkeypatch, tmp_path):
    monkeypatch.setenv("LILY_TEST_DEVICE", "sim")  # the script sets it; set back at the end
    monkeypatch.syspath_prepend(str(BENCHMARKS.parent / "tests" / "metal"))
    size = ["--device", "sim", "--rows", 3, "--positions", "5,40", "--runs", 1]
    assert len(run(monkeypatch, tmp_path, "prompt_attention", *size)["figures"]) == 2


def test_the_profile_adds_up(built, monkeypatch, tmp_path):
    if not shutil.which("perf") or subprocess.run(["perf", "stat", "-e", "cpu-clock", "true"], check=False).returncode:
        pytest.skip("perf does not run here")
    monkeypatch.chdir(BENCHMARKS.parent)
    size = ["--phase", "prefill", "--tokens", 8, "--repeat", 1, "--threads", 1]
    file = tmp_path / "profile.json"
    command = [sys.executable, BENCHMARKS / "profile_cpu.py", "lily-tiny", *map(str, size), "--json", file]
    subprocess.run(command, check=True)
    assert 90 < sum(json.loads(file.read_text())["shares"].values()) < 101


@pytest.mark.skipif(os.name != "posix", reason="runs scripts of the shell")
def test_kernel_programs_are_built_and_run(monkeypatch, tmp_path):
    """With stand-ins for cmake and for both programs, which a build of minutes would make."""
    scripts = {
        "cmake": f'echo "$@" > {tmp_path}/asked',
        "bench_matmul": 'echo "$1      prefill affine4 rows 2    threads=1     12.5 GMAC/s"',
        "bench_float_kernels": 'echo "$1"; echo "  rms_norm 2048    0.4 us     61.4 GB/s    20.5 GFLOP/s"',
    }
    for name, script in scripts.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    figures = run(monkeypatch, tmp_path, "cpu_kernels", tmp_path, "--isa", "avx2")["figures"]
    assert (tmp_path / "asked").read_text() == f"--build {tmp_path} --target bench_matmul bench_float_kernels\n"
    assert figures["avx2, prefill affine4 rows 2, 1 threads, GMAC/s"] == 12.5
    assert figures["avx2, rms_norm 2048, GB/s"] == 61.4


def test_shares_of_a_report():
    printed = "    61.54%  _core.so       [.] matmul_amx\n     2.06%  _core.so       [.] 0x00000000000d1d15\n"
    printed += "     1.00%  _core.so       [.] 0x00000000000d1d19\n     9.10%  [kernel]       [k] clear_page\n"
    assert load("profile_cpu").shares_of(printed) == {
        "_core.so: matmul_amx": 61.54,
        "[kernel]: clear_page": 9.1,
        "_core.so: no symbol": pytest.approx(3.06),
    }


def test_figures_of_the_kernel_programs_are_read():
    printed = "avx2      decode experts 512x2048             threads=2      11.4 GB/s\navx2\n"
    printed += "  gdn_scan tokens 1                       123.4 us     12.3 GB/s      5.4 GFLOP/s\n"
    assert load("cpu_kernels").read(printed) == {
        "avx2, decode experts 512x2048, 2 threads, GB/s": 11.4,
        "avx2, gdn_scan tokens 1, GB/s": 12.3,
        "avx2, gdn_scan tokens 1, GFLOP/s": 5.4,
    }


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
