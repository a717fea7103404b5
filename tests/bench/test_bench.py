"""The measurements of lily bench on the bundled model: shape of the result, repeatable tokens, clear failures."""

import sys

import pytest

from lily.bench.bandwidth import read_bandwidth
from lily.bench.engine import LilyEngine
from lily.bench.errors import BenchError
from lily.bench.measure import Workload, measure
from lily.bench.page_cache import bring_in
from lily.bench.peer import run_llama_cpp
from lily.bench.roof import decode_bytes
from lily.bench.samples import Samples
from lily.bench.table import render
from lily.checkpoint import read_checkpoint, resolve_source

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
    assert "peer" not in result and "ratio" not in result


def test_equal_work_gives_equal_digests(result):
    again = measure("lily-tiny", WORKLOAD, lambda what: None)
    assert again["digests"] == result["digests"]


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


def test_table_shows_both_engines_and_the_ratio(result):
    modes = {"repacked": result["lily"], "as mapped": result["lily"]}
    both = {**result, "peer": {"name": "llama.cpp", "modes": modes}, "ratio": dict.fromkeys(result["lily"], 1.37)}
    alone, table = render(result), render(both)
    assert "llama.cpp" not in alone
    rows = [line for line in table.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + 3 and len({row.count("|") for row in rows}) == 1
    assert "llama.cpp, repacked" in rows[0] and "1.37" in rows[2]


def test_samples():
    samples = Samples()
    for seconds in (2.0, 1.0, 4.0):
        samples.add(8, seconds)
    assert samples.to_dict() == {"median": 4.0, "min": 2.0, "max": 8.0, "runs": 3}


def test_a_peer_that_is_not_installed(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"no GGUF")
    job = {"file": str(tmp_path / "model.gguf"), "threads": 1, "prompt": [4], "context": [4], "decode": 2, "warm_up": 4}
    with pytest.raises(BenchError, match=r"llama.cpp \(repacked\) failed with exit code 1"):
        run_llama_cpp(sys.executable, "repacked", job)
    with pytest.raises(BenchError, match="cannot be run"):
        run_llama_cpp(str(tmp_path / "python"), "as mapped", job)


def test_bring_in_reads_whole_files(tmp_path):
    wanted, other = tmp_path / "wanted", tmp_path / "other"
    wanted.write_bytes(bytes(range(256)) * 100_000)  # more than one piece
    other.write_bytes(b"kept on disk")
    bring_in([wanted], instead_of=[other])
    assert wanted.stat().st_size == 25_600_000 and other.read_bytes() == b"kept on disk"
    with pytest.raises(FileNotFoundError):
        bring_in([tmp_path / "missing"])


@pytest.mark.parametrize("threads", [1, 2])
def test_bandwidth_of_a_buffer_in_the_cache_is_plausible(threads):
    rate = read_bandwidth(threads, buffer_bytes=1 << 20, runs=3)
    assert 1e8 < rate < 1e13  # bytes a second: above a spinning disk, below any processor's registers
