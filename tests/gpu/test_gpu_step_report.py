"""What a step of the real model comes to: kernels, stages, bytes and waits, and how each mechanism changes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import lily
from gpu_models import GPU_CONFIG
from lily.cli import main
from lily.errors import ConfigError
from lily.model.gpu_options import MECHANISMS
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
    off = lily.step_report(config, phase=phase, context=CONTEXT, options=lily.GpuOptions().without(mechanism))
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


def test_blocks_of_attention_begin_at_their_threshold(config: Path) -> None:
    """A step at position p attends to p + 1 positions."""

    def kernels(context: int, threshold: int) -> set[str]:
        options = lily.GpuOptions(blocked_attention_threshold=threshold)
        counts = lily.step_report(config, phase="decode", context=context, options=options).kernel_counts
        return {name for name in counts if name.startswith("attention_decode")}

    for threshold in (5, 32_768):
        assert kernels(threshold - 2, threshold) == {"attention_decode"}
        assert kernels(threshold - 1, threshold) == {"attention_decode_blocked"}


def test_attention_has_64_splits_at_most(config: Path) -> None:
    """One for 256 positions each; what they write is added up, so its bytes tell how many there are."""

    def written(positions: int) -> int:
        options = lily.GpuOptions().without("D7")
        return lily.step_report(config, phase="decode", context=positions - 1, options=options).written["other"]

    split = written(257) - written(256)
    assert split == 10 * 16 * (256 + 2) * 4  # layers, heads, a maximum, a sum and head_dim values, float32
    assert written(64 * 256) - written(1) == 63 * split
    assert written(64 * 256 + 1) == written(200_000) == written(64 * 256)


def test_every_mechanism_has_a_name_and_all_can_be_off(config: Path) -> None:
    off = lily.GpuOptions().without("all")
    for mechanism in MECHANISMS.values():
        assert getattr(off, mechanism.field) == mechanism.off != getattr(lily.GpuOptions(), mechanism.field)
    assert lily.GpuOptions().without("ALL") == off == lily.GpuOptions().without(*MECHANISMS)
    for name in ("D9", "D", "", "al"):
        with pytest.raises(ConfigError, match="there is no mechanism"):
            lily.GpuOptions().without(name)


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
    report = lily.step_report(config, phase="decode", context=4096, options=lily.GpuOptions().without("D4"))
    assert printed == report.to_dict()
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert f"{report.kernels:,}" in text and f"{report.bytes_read:,}" in text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head_dim": 48}, "head_dim is 48"),
        ({"linear_key_head_dim": 288}, "linear_key_head_dim is 288"),
        ({"num_experts": 513}, "num_experts is 513"),
        ({"num_experts": 64, "num_experts_per_tok": 33}, "num_experts_per_tok is 33"),
    ],
)
def test_models_that_the_engine_refuses_have_no_report(tmp_path: Path, changes: dict[str, int], message: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(full_config({**GPU_CONFIG, **changes}, Options())), encoding="utf-8")
    for phase in ("decode", "prefill"):
        with pytest.raises(ConfigError, match=message):
            lily.step_report(path, phase=phase, context=4, rows=3 if phase == "prefill" else None)


def test_experts_that_are_copied_are_reported(tmp_path: Path) -> None:
    # A plain matrix of 34 by 98 is no whole number of 16 bytes: in a stack, the next one is not aligned.
    config = {**GPU_CONFIG, "hidden_size": 98, "moe_intermediate_size": 34}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(full_config(config, Options(bits=None))), encoding="utf-8")
    for phase in ("decode", "prefill"):
        report = lily.step_report(path, phase=phase, context=4, rows=3 if phase == "prefill" else None)
        chosen = 3 if phase == "decode" else 9  # experts
        layers, experts, shared = 4, 3 * 34 * 98, 3 * 64 * 98
        assert report.read["weights"] > 2 * layers * (chosen * experts + shared)


def test_rows_that_are_not_whole_groups_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(full_config(GPU_CONFIG, Options(group_size=64))), encoding="utf-8")
    with pytest.raises(ConfigError, match="rows of 96 columns, which are not whole groups of 64"):
        lily.step_report(path, phase="decode", context=4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"context": -1}, "context must be a whole number of at least 0"),
        ({"context": "5"}, "context must be a whole number"),
        ({"context": 1.5}, "context must be a whole number"),
        ({"context": True}, "context must be a whole number"),
        ({"context": 262_144}, "must fit in the model's 262144"),
        ({"phase": "prefill", "rows": 0}, "rows must be a whole number of at least 1"),
        ({"phase": "prefill", "rows": "3"}, "rows must be a whole number"),
        ({"phase": "both"}, "phase must be"),
        ({"options": "D3"}, "options must be lily.GpuOptions"),
        ({"options": {}}, "options must be lily.GpuOptions"),
    ],
)
def test_arguments_of_a_report(config: Path, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        lily.step_report(config, **{"phase": "decode", "context": 4, **arguments})  # type: ignore[arg-type]
