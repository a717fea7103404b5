"""lily.ablate and lily ablate on the sim device: which configurations run, and what is reported about them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import lily
from lily.cli import main
from lily.errors import ConfigError
from lily.model.gpu_options import MECHANISMS


def test_every_mechanism_is_measured_in_its_phase(checkpoint: Path) -> None:
    result = lily.ablate(checkpoint, backend="sim", prompt=(9,), context=(5,), decode=2, runs=1)
    assert [row.mechanism for row in result.rows] == list(MECHANISMS)
    for row in result.rows:
        assert row.phase == MECHANISMS[row.mechanism].phase
        assert row.length == (9 if row.phase == "prefill" else 5)
        assert row.gain == pytest.approx(row.on.median / row.off.median - 1)
    by_name = {row.mechanism: row for row in result.rows}
    assert by_name["P1"].kernels[1] > by_name["P1"].kernels[0]
    assert by_name["D3"].stages[1] > by_name["D3"].stages[0]
    assert by_name["D4a"].kernels[1] > by_name["D4a"].kernels[0]
    assert by_name["D6"].kernels[1] == by_name["D6"].kernels[0]
    assert all(name in str(result) for name in MECHANISMS)


def test_a_loaded_model_goes_back_to_all_mechanisms(checkpoint: Path) -> None:
    with lily.Model.load(checkpoint, backend="sim") as model:
        with model.session() as session:
            session.prefill([1, 2, 3])
            session.decode(4)
        before = lily._core.gpu.counters(model.core).decode.kernels
        lily.ablate(model, mechanisms=["D4"], context=(5,), decode=1, runs=1)
        with model.session() as session:
            session.prefill([1, 2, 3])
            session.decode(4)
        assert lily._core.gpu.counters(model.core).decode.kernels == before


def test_the_command_prints_the_rows(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["ablate", str(checkpoint), "--backend", "sim", "--only", "D5", "--only", "P3"]
    arguments += ["--prompt", "5,7", "--context", "5", "--decode", "1", "--runs", "1"]
    assert main([*arguments, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [(row["mechanism"], row["length"]) for row in printed["rows"]] == [("P3", 5), ("P3", 7), ("D5", 5)]
    assert printed["backend"] == "sim"


def test_what_cannot_be_measured_is_refused(checkpoint: Path) -> None:
    with pytest.raises(ConfigError, match="cpu backend has no switches"):
        lily.ablate(checkpoint, backend="cpu")
    with pytest.raises(ConfigError, match="D9"):
        lily.ablate(checkpoint, backend="sim", mechanisms=["D9"])
    with pytest.raises(ConfigError, match="whole number"):
        lily.ablate(checkpoint, backend="sim", context=(5000,), mechanisms=["D5"])
    with pytest.raises(ConfigError, match="apply only to GPU backends"):
        lily.Model.load(checkpoint, backend="cpu", options=lily.GpuOptions())
