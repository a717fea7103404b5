"""The measurements of lily bench on the bundled model: shape of the result, repeatable tokens, plot and table."""

import json
import mmap
import os
import sys
from pathlib import Path

import pytest

from lily.bench.bandwidth import read_bandwidth
from lily.bench.engine import LilyEngine
from lily.bench.errors import BenchError
from lily.bench.grid import default_lengths
from lily.bench.measure import Workload, measure
from lily.bench.memory import major_faults
from lily.bench.page_cache import bring_in
from lily.bench.plot import check_plot, save_plot
from lily.bench.roof import decode_bytes
from lily.bench.samples import Samples
from lily.bench.table import render
from lily.checkpoint import read_checkpoint, resolve_source
from lily.cli import main

WORKLOAD = Workload(prompt=(7, 33), context=(5,), decode=3, runs=2, threads=1, bandwidth_bytes=1 << 20)


@pytest.fixture(scope="module")
def result():
    return measure("lily-tiny", WORKLOAD, lambda what: None)


def test_result_holds_every_figure(result):
    assert set(result["lily"]) == {"prefill 7", "prefill 33", "decode 5"} == set(result["digests"])
    for figures in result["lily"].values():
        assert 0 < figures["min"] <= figures["median"] <= figures["max"]
        assert figures["runs"] == 2
    roof = result["roof"]["decode 5"]
    expected = result["bandwidth_bytes_per_second"]["1"] / roof["bytes"]["total"]
    assert roof["tokens_per_second"] == pytest.approx(expected, rel=1e-3)
    assert "peers" not in result and "ratio" not in result


def test_equal_work_gives_equal_digests(result):
    again = measure("lily-tiny", WORKLOAD, lambda what: None)
    assert again["digests"] == result["digests"]


def test_the_warm_up_may_have_the_length_of_a_measurement():
    workload = Workload(prompt=(128,), context=(128,), decode=6, runs=2, threads=1, bandwidth_bytes=1 << 20)
    assert set(measure("lily-tiny", workload, lambda what: None)["digests"]) == {"prefill 128", "decode 128"}


def test_differing_tokens_are_an_error():
    class Logits:
        def __init__(self):
            self.calls = 0

        def argmax(self):
            self.calls += 1
            return self.calls

    class Session:
        logits = Logits()

        def reset(self):
            pass

        def prefill(self, ids):
            return self.logits

    class Model:
        def session(self, seed):
            return Session()

    engine = LilyEngine(Model(), 100)
    engine.prefill(4)
    with pytest.raises(BenchError, match="prefill 4: two runs produced different tokens"):
        engine.prefill(4)


def test_traffic_grows_with_the_context_by_its_keys_and_values():
    checkpoint = read_checkpoint(resolve_source("lily-tiny"))
    config = checkpoint.config
    short, long = decode_bytes(checkpoint, 10), decode_bytes(checkpoint, 110)
    per_token = config.num_full_attention_layers * 2 * config.num_key_value_heads * config.head_dim * 2
    assert long.total - short.total == 100 * per_token
    assert 0 < short.experts < sum(m.total_bytes for m in checkpoint.source.matrices if ".experts." in m.name)


@pytest.fixture
def beside_peers(result):
    """The result as if two peers had been measured; the second has left out a prompt."""
    some = {name: figures for name, figures in result["lily"].items() if name != "prefill 33"}
    peers = [
        {"name": "llama.cpp", "version": "0.1", "model": "a.gguf", "modes": {"fast": result["lily"], "slow": some}},
        {"name": "mlx-lm", "version": "0.2", "model": "folder", "modes": {"": some}},
    ]
    return {**result, "peers": peers, "ratio": dict.fromkeys(result["lily"], 1.37)}


def test_table_shows_all_engines_and_the_ratio(result, beside_peers):
    alone, table = render(result), render(beside_peers)
    assert "llama.cpp" not in alone
    rows = [line for line in table.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + 3 and len({row.count("|") for row in rows}) == 1
    header, first, second = ([cell.strip() for cell in rows[i].split("|")] for i in (0, 2, 3))
    assert header[2:7] == ["lily", "llama.cpp, fast", "llama.cpp, slow", "mlx-lm", "ratio"]
    assert "-" not in first[2:6] and "1.37" in first
    assert second[4:6] == ["-", "-"]
    assert "mlx-lm: 0.2" in table
    some = {**beside_peers["lily"]["prefill 7"], "major_faults": 41}
    disk = render({**beside_peers, "lily": {**beside_peers["lily"], "prefill 7": some}})
    assert "pages read from the disk in timed runs: lily 4" in disk and "mlx-lm 0" in disk


def test_pages_from_the_disk_are_counted(tmp_path):
    if filesystem(tmp_path) in ("tmpfs", "ramfs", "overlay"):
        pytest.skip("the temporary folder is in memory")
    file = tmp_path / "mapped"
    file.write_bytes(bytes(range(256)) * 200_000)
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        before = major_faults()
        assert sum(mapped[::4096]) == 0  # the first byte of every page
        assert major_faults() > before


def filesystem(path):
    """The type of the file system that holds `path`."""
    mounts = [line.split()[1:3] for line in Path("/proc/self/mounts").read_text().splitlines()]
    return max((mount for mount in mounts if path.is_relative_to(mount[0])), key=lambda mount: len(mount[0]))[1]


def test_plot_draws_every_figure(beside_peers, tmp_path):
    pytest.importorskip("matplotlib")
    file = tmp_path / "speed.svg"
    save_plot(beside_peers, file)
    drawn = file.read_text(encoding="utf-8")
    assert "<!-- lily -->" in drawn and "<!-- llama.cpp, slow -->" in drawn and "<!-- mlx-lm -->" in drawn
    assert "<!-- prompt, tokens -->" in drawn and "<!-- 33 -->" in drawn
    with pytest.raises(BenchError, match="cannot be written"):
        save_plot(beside_peers, tmp_path / "missing" / "speed.svg")
    with pytest.raises(BenchError, match="cannot be written"):
        save_plot(beside_peers, tmp_path / "speed.unknown")


def test_a_plot_that_cannot_be_drawn_is_refused_before_measuring(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    check_plot(tmp_path / "speed.SVG")
    monkeypatch.setattr("lily.bench.measure.measure", lambda *arguments: pytest.fail("measured"))
    for name, message in (("missing/a.svg", "there is no folder"), ("a.unknown", "its name must end in one of")):
        assert main(["bench", "--plot", str(tmp_path / name)]) == 1
        assert message in capsys.readouterr().err


def test_figures_are_printed_although_the_plot_fails(result, tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr("lily.bench.measure.measure", lambda *arguments: result)
    (tmp_path / "taken.svg").mkdir()
    assert main(["bench", "--json", "--plot", str(tmp_path / "taken.svg")]) == 1
    written = capsys.readouterr()
    assert "cannot be written" in written.err
    assert json.loads(written.out)["digests"] == result["digests"]


def test_plot_without_matplotlib_says_what_to_install(result, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(BenchError, match="needs matplotlib"):
        save_plot(result, tmp_path / "speed.svg")


def test_a_gpu_is_measured_at_ten_lengths_that_fit():
    ten = tuple(256 * 2**i for i in range(10))
    assert default_lengths("cuda", 262_144) == default_lengths("metal", 131_072) == (ten, ten)
    assert default_lengths("cuda", 131_071) == (ten[:9], ten[:9])
    assert default_lengths("sim", 4096) == default_lengths("cpu", 4096) == ((128, 512), (16, 512))
    assert default_lengths("cpu", 300) == ((128,), (16,))


def test_samples():
    samples = Samples()
    for seconds in (2.0, 1.0, 4.0):
        samples.add(8, seconds, major_faults=int(seconds))
    assert samples.to_dict() == {"median": 4.0, "min": 2.0, "max": 8.0, "runs": 3, "major_faults": 7}


def test_bring_in_reads_whole_files(tmp_path):
    wanted, other = tmp_path / "wanted", tmp_path / "other"
    wanted.write_bytes(bytes(range(256)) * 100_000)  # more than one piece
    other.write_bytes(b"kept on disk")
    bring_in([wanted], instead_of=[other])
    assert wanted.stat().st_size == 25_600_000 and other.read_bytes() == b"kept on disk"
    with pytest.raises(FileNotFoundError):
        bring_in([tmp_path / "missing"])


def test_what_was_brought_in_is_mapped_without_waiting(tmp_path):
    if filesystem(tmp_path) in ("tmpfs", "ramfs", "overlay"):
        pytest.skip("the temporary folder is in memory")
    file = tmp_path / "mapped"
    file.write_bytes(bytes(range(256)) * 200_000)
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
        assert bring_in([file], instead_of=[file]) == 0
        with mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            before = major_faults()
            assert sum(mapped[::4096]) == 0
            assert major_faults() == before


@pytest.mark.parametrize("threads", [1, 2])
def test_bandwidth_of_a_buffer_in_the_cache_is_plausible(threads):
    rate = read_bandwidth(threads, buffer_bytes=1 << 20, runs=3)
    assert 1e8 < rate < 1e13  # bytes a second: above a spinning disk, below any processor's registers
