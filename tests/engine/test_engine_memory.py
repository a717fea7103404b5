"""The planned memory against what the engine allocates."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lily
from engine_helpers import expect_success, run_python
from synthetic import random_config, text_config, write_checkpoint

CHUNK = 96


def run_full_chunks(model: lily.Model) -> lily.Session:
    session = model.session()
    session.prefill(np.random.default_rng(1).integers(0, model.config.vocab_size, 2 * CHUNK + 5))
    return session


@pytest.mark.parametrize("seed", range(4))
def test_planned_scratch_covers_what_a_chunk_allocates(tmp_path: Path, seed: int) -> None:
    write_checkpoint(tmp_path, random_config(np.random.default_rng(seed)), group_size=32)
    with lily.Model.load(tmp_path, threads=2, prefill_chunk=CHUNK) as model:
        run_full_chunks(model)
        assert 0 < model.scratch_bytes <= model.plan(1024).scratch


# What needs memory that the small models above do not: output projections of more rows than an expert has, logits of
# scored rows beside small blocks, and inputs that matrices of several formats read.
UNUSUAL: list[tuple[dict[str, int], dict[str, Any]]] = [
    ({"hidden_size": 2048, "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64}, {}),
    ({"vocab_size": 20_011}, {}),
    (
        {"hidden_size": 512},
        {
            "overrides": {
                "layers.0.linear_attn.in_proj_qkv": {"bits": 8, "group_size": 32},
                "layers.0.linear_attn.in_proj_z": {"bits": 8, "group_size": 64},
                "layers.0.linear_attn.in_proj_a": {"bits": 4, "group_size": 64},
                "layers.0.linear_attn.in_proj_b": {"bits": 8, "group_size": 128},
            }
        },
    ),
]


@pytest.mark.parametrize("dimensions, stored", UNUSUAL)
def test_planned_scratch_covers_unusual_models(
    tmp_path: Path, dimensions: dict[str, int], stored: dict[str, Any]
) -> None:
    config = random_config(np.random.default_rng(3), group_size=128, tied=False)
    text_config(config).update({"layer_types": ["linear_attention"], "num_hidden_layers": 1}, **dimensions)
    write_checkpoint(tmp_path, config, group_size=32, **stored)
    ids = np.random.default_rng(1).integers(0, text_config(config)["vocab_size"], 700)
    with lily.Model.load(tmp_path, threads=1, prefill_chunk=600) as model, model.session() as session:
        session.prefill(ids)
        session.score(ids)
        assert 0 < model.scratch_bytes <= model.plan(1024).scratch
    with lily.Model.load(tmp_path, threads=1, prefill_chunk=20) as model, model.session() as session:
        session.score(ids[:100])
        assert 0 < model.scratch_bytes <= model.plan(1024).scratch


def test_planned_memory_of_the_bundled_model_is_close() -> None:
    # One thread: a second one holds memory only if it came in time to take part.
    with lily.Model.load("lily-tiny", threads=1, prefill_chunk=CHUNK) as model:
        session = run_full_chunks(model)
        planned = model.plan(session.position)
        assert model.scratch_bytes <= planned.scratch <= 1.3 * model.scratch_bytes
        state = planned.kv_cache + planned.recurrent_state + planned.conv_state
        assert session.state_bytes == state


ONE_PROCESSOR = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import lily

with lily.Model.load("lily-tiny") as model:
    assert lily.plan("lily-tiny", 1024).threads == model.threads == 1
    assert lily.plan("lily-tiny", 1024) == model.plan(1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits the processors of a process")
def test_the_plan_counts_the_threads_that_a_model_gets() -> None:
    expect_success(run_python(ONE_PROCESSOR))


FREED = """
import numpy as np
import lily
from lily.bench.memory import resident_memory

def anonymous():
    return resident_memory()["anonymous"]

ids = np.random.default_rng(2).integers(0, 1000, 2000)
after = []
for _ in range(4):
    model = lily.Model.load("lily-tiny", threads=2, prefill_chunk=1000, prefix_cache_bytes=0)
    sessions = [model.session() for _ in range(3)]
    for session in sessions:
        session.prefill(ids)
    own = model.scratch_bytes + sum(session.state_bytes for session in sessions)
    full = anonymous()
    model.close()
    del model, sessions, session
    after.append(anonymous())
assert own > 30_000_000, own
assert full - after[-1] > 0.9 * own, (full, after, own)
assert after[-1] - after[0] < 0.1 * own, (after, own)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc what the process holds")
def test_memory_of_a_closed_model_goes_back_to_the_system() -> None:
    expect_success(run_python(FREED))
