"""What depends on how a state was computed, and what must not: parts of prompts, saved sessions, options of models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import lily
from engine_helpers import assert_parts_give_the_same_bits, random_ids
from gpu_models import GPU_CONFIG
from lily import _core
from lily.errors import CheckpointError, ConfigError
from synthetic import write_checkpoint

PROMPT = random_ids(66, seed=51)


@pytest.mark.parametrize("parts", [(65, 1), (1, 65), (33, 1, 32), (64, 1, 1)])
def test_parts_of_a_prompt_give_the_same_bits(model: lily.Model, parts: tuple[int, ...]) -> None:
    assert_parts_give_the_same_bits(model, PROMPT, parts)


def test_states_of_other_kernels_are_refused(
    model: lily.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = _core.gpu_arithmetic()
    assert len(kernels) == 12
    with model.session() as session:
        session.prefill(PROMPT[:5])
        session.save(tmp_path / "state")
    monkeypatch.setattr(_core, "gpu_arithmetic", lambda: "0123456789ab")
    with pytest.raises(CheckpointError, match=f"computed by 'sim, arithmetic={kernels}.*arithmetic=0123456789ab"):
        model.load_session(tmp_path / "state")


def test_sessions_move_only_to_models_that_round_alike(
    checkpoint: Path, model: lily.Model, cpu_model: lily.Model, tmp_path: Path
) -> None:
    file = tmp_path / "session"
    with model.session() as session:
        session.prefill(PROMPT[:9])
        session.save(file)
        expected = np.array(session.decode(3))
    with lily.Model.load(checkpoint, backend="sim", options=lily.GpuOptions().without("P2", "D2", "D3")) as same:
        assert np.array_equal(same.load_session(file).decode(3), expected)
    with pytest.raises(CheckpointError, match="computed by 'sim, "):
        cpu_model.load_session(file)
    bfloat16 = lily.Model.load(checkpoint, backend="cpu", kv_cache_type="bfloat16")
    with bfloat16 as other, pytest.raises(CheckpointError, match="computed by 'sim, "):
        other.load_session(file)
    blocks = {"backend": "sim", "options": lily.GpuOptions(blocked_attention_threshold=5)}
    with lily.Model.load(checkpoint, **blocks) as first, first.session() as session:
        session.prefill(PROMPT[:9])
        session.save(tmp_path / "blocks")
    other = lily.Model.load(checkpoint, backend="sim", options=lily.GpuOptions(blocked_attention_threshold=6))
    with other, pytest.raises(CheckpointError, match=r"threshold=5.*threshold=6"):
        other.load_session(tmp_path / "blocks")
    unfused = lily.Model.load(checkpoint, backend="sim", options=lily.GpuOptions().without("D4b"))
    with unfused as other, pytest.raises(CheckpointError, match="fuse_expert_outputs"):
        other.load_session(file)


def test_a_session_without_tokens_is_saved_and_goes_on(model: lily.Model, tmp_path: Path) -> None:
    with model.session() as session:
        expected = np.array(session.prefill(PROMPT[:5]))
        session.reset()
        session.save(tmp_path / "after")
    with model.session() as session:
        session.save(tmp_path / "before")
    for name in ("after", "before"):
        with model.load_session(tmp_path / name) as session:
            assert session.tokens == []
            assert np.array_equal(session.prefill(PROMPT[:5]), expected)


def test_a_chunk_fits_the_grids_of_every_device(tmp_path: Path) -> None:
    config = {**GPU_CONFIG, "max_position_embeddings": 200_000}
    long = write_checkpoint(tmp_path / "long", config, seed=3, group_size=32)
    with lily.Model.load(long, backend="sim", prefill_chunk=150_000) as model:
        assert model.core.options.prefill_chunk == 65_535  # threadgroups in y


def test_an_ablation_goes_back_to_the_options_of_the_model(checkpoint: Path) -> None:
    with lily.Model.load(checkpoint, backend="sim", options=lily.GpuOptions().without("D4")) as model:

        def kernels() -> int:
            with model.session() as session:
                session.prefill(PROMPT[:3])
                session.decode(4)
            return int(lily._core.gpu.counters(model.core).decode.kernels)

        before = kernels()
        row = lily.ablate(model, mechanisms=["D3"], context=(4,), decode=1, runs=1).rows[0]
        assert row.kernels == (before + 2, before + 2)  # with the choice of the token on the device
        assert kernels() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"options": "D2"}, "options must be"),
        ({"kv_cache_type": "float16"}, "bfloat16"),
        ({"cpu_isa": "avx2"}, "cpu_isa"),
    ],
)
def test_options_of_another_backend_are_refused(checkpoint: Path, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        lily.Model.load(checkpoint, backend="sim", **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mechanisms": "D2"}, "list of names"),
        ({"mechanisms": []}, "list of names"),
        ({"mechanisms": [5]}, "named by a string"),
        ({"mechanisms": ["P5"]}, "prefill_chunk"),
        ({"mechanisms": ["P1"], "prompt": [0]}, "whole number"),
        ({"mechanisms": ["P1"], "prompt": ["8"]}, "whole number"),
        ({"mechanisms": ["P1"], "prompt": [8, 10_000_000]}, "10000000"),
        ({"mechanisms": ["P1"], "prompt": 8}, "list of whole numbers"),
        ({"mechanisms": ["D3"], "context": "8"}, "list of whole numbers"),
        ({"decode": 0}, "decode must be a whole number"),
        ({"decode": "2"}, "decode must be a whole number"),
        ({"decode": 10_000_000, "context": [3]}, "decode must be a whole number from 1 to 4,094"),
        ({"runs": 0}, "runs must be a whole number"),
        ({"runs": None}, "runs must be a whole number"),
    ],
)
def test_arguments_of_an_ablation(model: lily.Model, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        lily.ablate(model, **{"decode": 1, "runs": 1, **arguments})  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [lily.GpuOptions().without("all"), lily.GpuOptions(tile_rows=64)])
def test_a_mechanism_is_measured_on_and_off_whatever_the_model_was_loaded_with(
    checkpoint: Path, given: lily.GpuOptions
) -> None:
    with lily.Model.load(checkpoint, backend="sim", options=given) as model:
        rows = lily.ablate(model, mechanisms=["P2", "D4a"], prompt=[5], context=[3], decode=1, runs=1).rows
    assert all(row.kernels[0] != row.kernels[1] for row in rows)
