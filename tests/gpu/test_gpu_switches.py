"""Every mechanism on and off, and every layout of weights, against the CPU backend on small random models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lily
from engine_helpers import random_ids
from gpu_models import GPU_CONFIG
from lily.bench.step_report import step_report
from lily.model.gpu_options import MECHANISMS
from synthetic import write_checkpoint

PROMPT = random_ids(45, seed=21)
MORE = random_ids(4, seed=22)
# Logits relative to the largest one. The GPU engine rounds activations to bfloat16 (2^-8 relative) some ten times a
# layer: over 4 layers errors of random sign come to about 2^-8 sqrt(40). Seeds: no routing near-ties.
BOUND = 0.05


def logits_of(model: lily.Model) -> np.ndarray:
    """After the prompt, and after each token decoded behind it: [1 + len(MORE), vocab_size]."""
    return logits_after(model, PROMPT)


def logits_after(model: lily.Model, prompt: list[int]) -> np.ndarray:
    with model.session() as session:
        rows = [np.array(session.prefill(prompt))]
        rows += [np.array(session.decode(token)) for token in MORE]
    return np.stack(rows)


def distance(got: np.ndarray, expected: np.ndarray) -> float:
    assert np.isfinite(got).all()
    return float((np.abs(got - expected).max(-1) / np.abs(expected).max(-1)).max())


@pytest.fixture(scope="module")
def expected(cpu_model: lily.Model) -> np.ndarray:
    return logits_of(cpu_model)


@pytest.fixture(scope="module")
def all_on(model: lily.Model) -> np.ndarray:
    return logits_of(model)


def test_all_mechanisms_on(all_on: np.ndarray, expected: np.ndarray) -> None:
    assert distance(all_on, expected) < BOUND


@pytest.mark.parametrize("mechanism", [*MECHANISMS, "all"])
def test_a_mechanism_off_computes_the_same(
    checkpoint: Path, expected: np.ndarray, all_on: np.ndarray, mechanism: str
) -> None:
    options = lily.GpuOptions().without(mechanism)
    with lily.Model.load(checkpoint, backend="sim", options=options) as model:
        got = logits_of(model)
    assert distance(got, expected) < BOUND
    if mechanism in ("P2", "D2", "D3"):  # other schedules of the same arithmetic
        assert np.array_equal(got, all_on)


@pytest.mark.parametrize("rows", [16, 32, 64])
def test_tile_rows_do_not_change_results(checkpoint: Path, all_on: np.ndarray, rows: int) -> None:
    with lily.Model.load(checkpoint, backend="sim", options=lily.GpuOptions(tile_rows=rows)) as model:
        assert distance(logits_of(model), all_on) < 2.0**-8


@pytest.mark.parametrize("chunk", [1, 7, 16, 44])
def test_chunks_carry_the_state(checkpoint: Path, all_on: np.ndarray, expected: np.ndarray, chunk: int) -> None:
    with lily.Model.load(checkpoint, backend="sim", prefill_chunk=chunk) as model:
        assert distance(logits_of(model), expected) < BOUND


def test_blocked_attention_from_a_threshold(tmp_path: Path) -> None:
    """D7 needs a head dimension of 256 and eight query heads a KV head."""
    config = {**GPU_CONFIG, "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 256}
    directory = write_checkpoint(tmp_path / "wide", config, seed=3, group_size=32)
    prompt = random_ids(530, seed=2)  # two blocks of 512 positions, three splits of the general path
    got, kernels = [], []
    for options in (lily.GpuOptions(blocked_attention_threshold=500), lily.GpuOptions().without("D7")):
        plan = step_report(directory / "config.json", phase="decode", context=len(prompt), options=options)
        kernels.append({name for name in plan.kernel_counts if name.startswith("attention_decode")})
        with lily.Model.load(directory, backend="sim", options=options) as model:
            got.append(logits_after(model, prompt))
    with lily.Model.load(directory, backend="cpu") as model:
        want = logits_after(model, prompt)
    assert distance(got[0], want) < BOUND
    assert distance(got[1], want) < BOUND
    # The prompt path is the same. Decoding takes another one, whose results may round to the same bits.
    assert np.array_equal(got[0][0], got[1][0])
    assert kernels == [{"attention_decode_blocked"}, {"attention_decode"}]


LAYOUTS: list[dict[str, Any]] = [
    {"bits": 8, "group_size": 64},
    {"bits": 4, "group_size": 32, "layout": "per_expert", "shards": 3, "scatter": True},
    {"bits": None},
    {"bits": None, "layout": "fused", "plain_dtype": "F16"},
    {"bits": 4, "group_size": 32, "router_bits": None, "scale_dtype": "F16", "vector_dtype": "F32"},
    {
        "bits": 4,
        "group_size": 32,
        "overrides": {
            "layers.0.mlp.experts.up_proj": {"bits": 8, "group_size": 32},
            "layers.1.mlp.experts.down_proj": False,
            "layers.2.linear_attn.in_proj_z": {"bits": 8, "group_size": 32},
            "lm_head": {"bits": 8, "group_size": 32},
        },
    },
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: " ".join(f"{k}={v}" for k, v in layout.items())[:40])
def test_layouts_of_weights(tmp_path: Path, layout: dict[str, Any]) -> None:
    config = {**GPU_CONFIG, "hidden_size": 128, "moe_intermediate_size": 64, "linear_num_value_heads": 12}
    config["num_attention_heads"] = 4
    directory = write_checkpoint(tmp_path / "model", config, seed=18, **layout)
    with lily.Model.load(directory, backend="cpu") as model:
        want = logits_of(model)
    if layout.get("plain_dtype") == "F16":  # no kernel for plain float16: the error says what does it
        with pytest.raises(lily.errors.ConfigError, match=r'plain float16.*backend="cpu"'):
            lily.Model.load(directory, backend="sim")
        return
    with lily.Model.load(directory, backend="sim") as model:
        assert distance(logits_of(model), want) < BOUND


def test_tensors_at_odd_offsets_are_copied_and_counted(tmp_path: Path) -> None:
    results = []
    for odd in (False, True):
        directory = write_checkpoint(tmp_path / str(odd), GPU_CONFIG, seed=2, group_size=32, odd_offsets=odd)
        with lily.Model.load(directory, backend="sim") as model:
            tensors, size = lily._core.gpu.copied_weights(model.core)
            assert (tensors > 0) == (size > 0)
            if odd:
                assert tensors > 0
            results.append(logits_of(model))
    assert np.array_equal(*results)


@pytest.mark.parametrize(
    ("field", "value"), [("head_dim", 48), ("linear_key_head_dim", 20), ("head_dim", 288), ("linear_key_head_dim", 288)]
)
def test_shapes_that_no_kernel_takes_are_refused_with_the_way_out(tmp_path: Path, field: str, value: int) -> None:
    directory = write_checkpoint(tmp_path / "model", {**GPU_CONFIG, field: value}, seed=1, bits=None)
    with pytest.raises(lily.errors.ConfigError, match=rf'{field}.*{value}.*backend="cpu"'):
        lily.Model.load(directory, backend="sim")
