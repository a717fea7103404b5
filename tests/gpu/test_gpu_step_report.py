"""What a step of the real model comes to: kernels, stages, bytes and waits, and how each mechanism changes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import lily
from lily.cli import main
from lily.errors import ConfigError
from lily.options import MECHANISMS
from synthetic import REAL_CONFIG, Options, full_config

# Bytes that every token of the 4-bit model must read: the matrices of all layers and the head, eight experts a layer.
WEIGHT_BYTES = 1_669_556_480
CONTEXT = 4096
KV_BYTES = 10 * 2 * 2 * 256 * 2 * CONTEXT  # layers, keys and values, KV heads, head_dim, bfloat16


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The config of the whole 4-bit model."""
    path = tmp_path_factory.mktemp("config") / "config.json"
    path.write_text(json.dumps(full_config(REAL_CONFIG, Options())), encoding="utf-8")
    return path


def test_a_decode_step_of_the_real_model(config: Path) -> None:
    report = lily.step_report(config, phase="decode", context=CONTEXT)
    assert report.kernels <= 420
    assert report.stages <= 340
    assert report.barriers == report.stages - 1
    assert report.waits <= 1
    assert report.steps_in_flight == 2
    assert report.read["weights"] + report.read["cache"] <= 1.02 * (WEIGHT_BYTES + KV_BYTES)
    assert report.read["cache"] >= KV_BYTES
    # The recurrent state comes on top: 30 layers of 32 heads of 128 x 128 float32, and the convolution's.
    recurrent = 30 * 4 * (32 * 128 * 128 + 3 * 8192)
    assert recurrent == report.read["recurrent"] == report.written["recurrent"]
    assert report.read["other"] < 0.01 * report.bytes_read


def test_a_chunk_of_a_prompt_has_no_wait_inside(config: Path) -> None:
    report = lily.step_report(config, phase="prefill", context=0, rows=2048)
    assert report.waits == 1
    assert report.stages <= report.kernels
    # Scratch memory is shared between stages, and does not grow with the context.
    assert report.scratch_bytes < 0.25 * report.scratch_bytes_unshared
    later = lily.step_report(config, phase="prefill", context=8192, rows=2048)
    assert later.scratch_bytes == report.scratch_bytes


@pytest.mark.parametrize(
    ("mechanism", "phase"),
    [("P1", "prefill"), ("P2", "prefill"), ("P4", "prefill"), ("D3", "decode"), ("D4", "decode"), ("D6", "decode")],
)
def test_turning_a_mechanism_off_costs_what_it_saves(config: Path, mechanism: str, phase: str) -> None:
    on = lily.step_report(config, phase=phase, context=CONTEXT)
    off = lily.step_report(config, phase=phase, context=CONTEXT, options=lily.Options().without(mechanism))
    if mechanism == "P1":  # the bf16 matrices are written and read back
        assert off.kernels > on.kernels
        assert off.bytes_written > on.bytes_written + 2 * 40 * 256 * 3 * 2048 * 512
    elif mechanism == "P2":
        assert off.waits >= 40 > on.waits
    elif mechanism == "P4":  # a state a block of tokens goes through memory
        assert off.bytes_written > on.bytes_written + 30 * (2048 // 16 - 1) * 32 * 128 * 128 * 4
    elif mechanism == "D3":
        assert off.stages == off.kernels == on.kernels
    elif mechanism == "D4":
        assert off.kernels >= on.kernels + 40 * 4
    else:
        assert off.kernels == on.kernels


def test_every_mechanism_has_a_name_and_all_can_be_off(config: Path) -> None:
    off = lily.Options().without("all")
    for mechanism in MECHANISMS.values():
        assert getattr(off, mechanism.field) == mechanism.off != getattr(lily.Options(), mechanism.field)
    assert lily.Options().without("ALL") == off == lily.Options().without(*MECHANISMS)
    for name in ("D9", "D", "", "al"):
        with pytest.raises(ConfigError, match="there is no mechanism"):
            lily.Options().without(name)


def test_a_directory_stands_for_its_config(config: Path) -> None:
    (config.parent / "model").mkdir()
    (config.parent / "model" / "config.json").write_bytes(config.read_bytes())
    report = lily.step_report(config.parent / "model", phase="decode", context=9)
    assert report == lily.step_report(config, phase="decode", context=9)


def test_a_decode_step_takes_no_rows(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="one row"):
        lily.step_report(config, phase="decode", context=0, rows=5)
    assert main(["step-report", "--config", str(config), "--phase", "decode", "--rows", "5"]) != 0
    assert "one row" in capsys.readouterr().err


def test_command_prints_the_same_as_json(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["step-report", "--config", str(config), "--phase", "decode", "--context", "4096", "--off", "D4"]
    assert main([*arguments, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    report = lily.step_report(config, phase="decode", context=4096, options=lily.Options().without("D4"))
    assert printed == report.to_dict()
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert f"{report.kernels:,}" in text and f"{report.bytes_read:,}" in text
