"""The small model of the engine's tests, and what they ask of it again and again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import lily

THREADS = 2
VOCAB = 301
CONTEXT = 4096
CONFIG: dict[str, Any] = {
    "model_type": "qwen3_5_moe_text",
    "hidden_size": 96,
    "num_hidden_layers": 4,
    "vocab_size": VOCAB,
    "max_position_embeddings": CONTEXT,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"],
    "linear_conv_kernel_dim": 4,
    "linear_num_key_heads": 3,
    "linear_key_head_dim": 20,
    "linear_num_value_heads": 6,
    "linear_value_head_dim": 32,
    "num_experts": 11,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 64,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
}


def random_ids(count: int, seed: int = 0, vocab: int = VOCAB) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, vocab, count)]


def fresh_logits(model: lily.Model, ids: list[int]) -> NDArray[np.float32]:
    """A copy of the logits after `ids` in a session of their own."""
    with model.session() as session:
        return np.array(session.prefill(ids))


def greedy(model: lily.Model, prompt: list[int], count: int) -> list[int]:
    """The prompt's greedy continuation."""
    with model.session() as session:
        session.prefill(prompt)
        return list(session.generate(max_tokens=count, sampling=lily.Sampling.greedy(), stop_tokens=()))


def in_chunks(action: Callable[[int, int], object], at: int) -> Callable[[int, int], None]:
    """A progress callback that acts once, after chunk number `at` (from 1)."""
    calls = 0

    def progress(done: int, total: int) -> None:
        nonlocal calls
        calls += 1
        if calls == at:
            action(done, total)

    return progress


def run_python(
    code: str, *arguments: object, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run code in a new interpreter that imports the same lily and the helpers of the tests."""
    here = Path(__file__).resolve().parent
    places = [str(Path(lily.__file__).resolve().parents[1]), str(here), str(here.parent), str(here.parent / "engine")]
    variables = {**os.environ, **(environment or {})}
    variables["PYTHONPATH"] = os.pathsep.join([*places, variables.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=variables,
        capture_output=True,
        text=True,
        timeout=120,
    )


def expect_success(result: subprocess.CompletedProcess[str]) -> None:
    assert result.returncode == 0, result.stderr
    assert "leaked" not in result.stderr, result.stderr


def assert_parts_give_the_same_bits(model: lily.Model, prompt: list[int], parts: tuple[int, ...]) -> None:
    """A prompt in parts of these lengths against the whole, and the step after it."""
    with model.session() as session:
        whole = np.array(session.prefill(prompt))
        after = np.array(session.decode(7))
    with model.session() as session:
        begin = 0
        for count in parts:
            logits = session.prefill(prompt[begin : begin + count])
            begin += count
        assert begin == len(prompt)
        assert np.array_equal(logits, whole)
        assert np.array_equal(session.decode(7), after)
