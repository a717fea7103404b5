"""Peers of lily bench: the driver's protocol with engines made for the test, and rounds that alternate with them."""

import json
import sys
from pathlib import Path

import pytest

from lily.bench import rounds
from lily.bench.errors import BenchError
from lily.bench.measure import Workload, measure
from lily.bench.memory import resident_memory
from lily.bench.peer import Peer, PeerProcess, llama_cpp, mlx_lm
from lily.bench.rounds import Plan, Rounds

JOB = {"threads": 1, "longest": 64, "warm_up": 6}
ROUND = {"prompt": [8, 32], "context": [8, 16], "decode": 5, "prompt_seconds": 1e9}

# Seconds follow from what was asked, so that tests know every figure; prints and a log reveal what was called.
ENGINE = """
import json, os

class Engine:
    version = "made for a test 1.0"
    vocab_size = 50
    keeps_prompt = {keeps_prompt}

    def __init__(self, job):
        self.job = job
        self.fed = 0
        self.write("open", sorted(job))

    def write(self, *what):
        with open({log!r}, "a") as log:
            print(os.getpid(), json.dumps(what), file=log)

    def prefill(self, ids):
        print("noise on standard output")
        os.system("echo more noise")
        assert all(0 <= token < 50 for token in ids)
        self.fed = len(ids)
        self.write("prefill", len(ids))
        return 0.25 * len(ids)

    def decode(self, context, tokens):
        assert context == self.fed or not self.keeps_prompt
        self.write("decode", context, tokens)
        return 0.5 * tokens

def open_engine(job):
    return Engine(job)
"""


def made_peer(folder: Path, source: str, **peer) -> Peer:
    file = folder / "engine.py"
    file.write_text(source, encoding="utf-8")
    model = folder / "weights.bin"
    model.write_bytes(b"weights")
    return Peer("made", "made-package", file, model, (model,), **peer)


@pytest.fixture
def log(tmp_path):
    return tmp_path / "log"


def calls(log):
    """(process, call) of every line."""
    lines = (line.split(" ", 1) for line in log.read_text().splitlines())
    return [(int(process), json.loads(call)) for process, call in lines]


@pytest.mark.parametrize("keeps_prompt", [True, False])
def test_a_process_answers_round_after_round(tmp_path, log, keeps_prompt):
    peer = made_peer(tmp_path, ENGINE.format(log=str(log), keeps_prompt=keeps_prompt))
    with PeerProcess(sys.executable, peer, "", JOB) as process:
        assert process.version == "made for a test 1.0"
        first, second = process.run(ROUND), process.run({**ROUND, "prompt": [4], "context": []})
    assert first.seconds == {"prefill 8": 2.0, "decode 8": 2.5, "decode 16": 2.5, "prefill 32": 8.0}
    assert second.seconds == {"prefill 4": 1.0}
    assert set(first.major_faults) == set(first.seconds)
    done = calls(log)
    assert len({process for process, _ in done}) == 1
    warm_up, prompts = [["prefill", 6], ["decode", 6, 4]], [["prefill", 8], ["decode", 8, 5]]
    middle = [["prefill", 16], ["decode", 16, 5]][not keeps_prompt :]
    wanted = [["open", ["file", "longest", "threads", "warm_up"]], *warm_up, *prompts, *middle, ["prefill", 32]]
    assert [call for _, call in done] == [*wanted, ["prefill", 4]]


@pytest.mark.parametrize("keeps_prompt", [True, False])
def test_prompts_that_take_too_long_are_left_out(tmp_path, log, keeps_prompt):
    peer = made_peer(tmp_path, ENGINE.format(log=str(log), keeps_prompt=keeps_prompt))
    with PeerProcess(sys.executable, peer, "", JOB) as process:
        seconds = process.run({**ROUND, "prompt": [8, 32], "context": [8, 64], "prompt_seconds": 7.9}).seconds
    # 32 tokens would take 8 s. Decoding after 64 needs no prompt where the engine makes its context itself.
    wanted = {"prefill 8", "decode 8"} | (set() if keeps_prompt else {"decode 64"})
    assert set(seconds) == wanted


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import package_that_there_is_not", r"made failed with exit code 1; install made-package there: .*No module"),
        (
            "def open_engine(job):\n    raise SystemExit('no such weights')",
            "made failed with exit code 1: no such weights",
        ),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGILL)", "build made-package on this machine"),
    ],
)
def test_a_peer_that_fails_says_why(tmp_path, source, message):
    peer = made_peer(tmp_path, source)
    with pytest.raises(BenchError, match=message):
        PeerProcess(sys.executable, peer, "", JOB)


def test_a_peer_that_fails_in_a_round_says_why(tmp_path, log):
    source = ENGINE.format(log=str(log), keeps_prompt=True).replace("return 0.5", "raise MemoryError('full') #")
    peer = made_peer(
        tmp_path, source.replace('self.write("decode"', 'if tokens == 4: return 1\n        self.write("decode"')
    )
    with PeerProcess(sys.executable, peer, "", JOB) as process, pytest.raises(BenchError, match="MemoryError: full"):
        process.run(ROUND)


def test_an_interpreter_that_there_is_not(tmp_path):
    with pytest.raises(BenchError, match="cannot be run"):
        PeerProcess(str(tmp_path / "python"), made_peer(tmp_path, ""), "", JOB)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("exit 0", "made ended without an answer; --peer-python must name a Python with made-package"),
        ("echo 1", "made gave no result but: '1"),
        ("echo '{}'", "made gave no result but: '{}"),
        (r"printf '\377 noise\n'", "made gave no result but: .* noise"),
        ("kill -9 $$", "made failed with exit code -9; killed, perhaps because memory ran out$"),
    ],
)
def test_what_is_no_interpreter_is_an_error(tmp_path, script, message):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    with pytest.raises(BenchError, match=message):
        PeerProcess(str(python), made_peer(tmp_path, ""), "", JOB)


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_rounds_alternate_and_compare(tmp_path, log, backend):
    source = ENGINE.format(log=str(log), keeps_prompt=True)
    peer = made_peer(tmp_path, source, modes={"one": {"ubatch": 1}, "two": {"ubatch": 2}})

    class Lily:
        def warm_up(self, length, tokens):
            assert length == plan.warm_up

        def prefill(self, length):
            log.open("a").write(f"0 {json.dumps(['lily', length])}\n")
            return 0.125 * length

        def continue_after(self, context, tokens):
            return 0.1 * tokens

        def close(self):
            opened.append("closed")

        def reopen(self, model):
            opened.append(model)

    opened = []
    plan = Plan((8, 32), (8, 64), 5, 1, backend, sys.executable, peer_seconds=7.9)
    with Rounds(Lily(), plan, (), [peer], lambda what: None, lambda: "loaded") as done:
        done.run(2)
    # Mapped files would stay in memory, where there is no room for the peer's.
    assert opened == (["closed", "loaded", "closed"] if backend == "cpu" else [])
    assert set(done.memory) == set(resident_memory())
    assert done.lily["prefill 32"].rates == pytest.approx([8.0, 8.0])
    assert done.peers["made, one"]["prefill 8"].rates == [4.0, 4.0]
    assert done.peers["made, two"]["decode 8"].rates == [2.0, 2.0]
    assert done.ratios() == pytest.approx({"prefill 8": 2.0, "decode 8": 5.0})
    (figures,) = done.peer_figures()
    assert figures["version"] == "made for a test 1.0" and set(figures["modes"]) == {"one", "two"}
    assert set(figures["modes"]["two"]) == {"prefill 8", "decode 8"}
    # Lily, mode one, mode two, and again; on a GPU of its own a peer stays loaded.
    turns = list(dict.fromkeys((index, process) for index, (process, _) in enumerate(calls(log))))
    order = [process for i, (_, process) in enumerate(turns) if i == 0 or turns[i - 1][1] != process]
    one, two = order[1], order[2]
    assert order[0] == order[3] == 0 and one != two
    assert (order[4:] == [one, two]) == (backend == "cuda")


def test_modes_of_llama_cpp_fit_the_device(tmp_path):
    file = tmp_path / "model.gguf"
    cpu, gpu = llama_cpp(file, "cpu"), llama_cpp(file, "metal")
    assert [mode["repack"] for mode in cpu.modes.values()] == [True, False]
    assert not any(mode["gpu"] for mode in cpu.modes.values())
    assert [mode["ubatch"] for mode in gpu.modes.values()] == [2048, 512] and all(m["gpu"] for m in gpu.modes.values())
    assert gpu.label("ubatch 512") == "llama.cpp, ubatch 512" and mlx_lm(tmp_path).label("") == "mlx-lm"


def test_a_measurement_beside_a_peer(tmp_path, log, monkeypatch):
    peer = made_peer(tmp_path, ENGINE.format(log=str(log), keeps_prompt=True))
    monkeypatch.setattr("lily.bench.measure.mlx_lm", lambda directory: peer)
    monkeypatch.setattr(rounds, "_WARM_UP", 4)
    workload = Workload(
        prompt=(7,),
        context=(5,),
        decode=2,
        runs=2,
        threads=1,
        bandwidth_bytes=1 << 20,
        peers=("mlx-lm",),
        peer_python=sys.executable,
    )
    result = measure("lily-tiny", workload, lambda what: None)
    assert result["peers"][0]["modes"][""]["prefill 7"]["median"] == 4.0
    assert result["ratio"]["prefill 7"] == pytest.approx(result["lily"]["prefill 7"]["median"] / 4.0, rel=1e-2)


@pytest.mark.parametrize("package", ["llama_cpp", "mlx_lm"])
def test_the_engines_that_ship_ask_for_their_package(tmp_path, package):
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\nexec {sys.executable} -c "import sys; sys.modules[\\"mlx\\"] = None; '
        'sys.modules[\\"llama_cpp\\"] = None; import runpy; sys.argv = sys.argv[2:]; '
        'runpy.run_path(sys.argv[0], run_name=\\"__main__\\")" "$@"\n'
    )
    python.chmod(0o755)
    peer = llama_cpp(tmp_path / "model.gguf", "cuda") if package == "llama_cpp" else mlx_lm(tmp_path)
    with pytest.raises(BenchError, match=f"install {peer.package} there"):
        PeerProcess(str(python), peer, next(iter(peer.modes)), JOB)
