"""The memory plan gives the real model's figures from headers alone, and those of small models exactly."""

from __future__ import annotations

import json
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from checkpoint_helpers import assert_valid
from lily.checkpoint import Checkpoint, plan, read_checkpoint
from lily.checkpoint.memory_plan import scratch_bytes
from lily.errors import InvalidArgumentError
from synthetic import (
    REAL_CONFIG,
    Options,
    Tensor,
    full_config,
    random_config,
    tensors,
    text_config,
    write_checkpoint,
)

TOKENS = 262_144


def write_sparse(directory: Path, groups: list[list[Tensor]], options: Options) -> None:
    """Headers of the right content over files of the right size, whose data takes no space on the disk."""
    directory.mkdir(parents=True, exist_ok=True)
    for number, group in enumerate(groups, 1):
        header, end = {}, 0
        for tensor in group:
            begin, end = end, end + tensor.nbytes
            header[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [begin, end]}
        text = json.dumps(header).encode()
        with (directory / f"model-{number:05d}-of-{len(groups):05d}.safetensors").open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.truncate(8 + len(text) + end)
    (directory / "config.json").write_text(json.dumps(full_config(REAL_CONFIG, options)))


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    options = Options(a_log_dtype="BF16")
    everything = list(tensors(REAL_CONFIG, options))
    vision = Tensor("vision_tower.blocks.0.attn.qkv.weight", "BF16", (893_142_496 // 2,), lambda: iter(()))
    directory = tmp_path_factory.mktemp("real")
    write_sparse(directory, [[vision, *everything[0::4]], *(everything[first::4] for first in (1, 2, 3))], options)
    return read_checkpoint(directory)


def test_the_real_checkpoint(real: Checkpoint) -> None:
    assert_valid(real)
    assert real.text_tensors == 1757
    assert real.text_bytes == 19_508_787_456
    assert real.ignored_bytes == 893_142_496
    assert len(real.source.files) == 4


def test_the_plan_of_the_real_checkpoint(real: Checkpoint) -> None:
    found = plan(real, TOKENS)
    assert found.weights == 19_508_787_456
    assert found.skipped == 893_142_496
    assert found.kv_cache == 5 << 30
    assert found.recurrent_state == 62_914_560
    assert found.conv_state == 30 * 3 * 8192 * 4
    assert found.logits == 248_320 * 4
    assert plan(real, 256).kv_cache == 20_480 * 256
    assert plan(real, 257).kv_cache == plan(real, 512).kv_cache == 20_480 * 512
    one_expert = {matrix.name: matrix for matrix in real.source.matrices}
    projections = [one_expert[f"layers.7.mlp.experts.{name}_proj"] for name in ("gate", "up", "down")]
    assert sum(matrix.total_bytes for matrix in projections) == 452_984_832
    assert sum(matrix.total_bytes // matrix.count for matrix in projections) == 1_769_472


def test_reading_the_real_headers_is_quick(real: Checkpoint) -> None:
    begin = time.perf_counter()
    again = read_checkpoint(real.directory)
    assert time.perf_counter() - begin < 2.0
    assert again == real


def test_the_vendors_checkpoint(tmp_path: Path) -> None:
    options = Options(
        bits=None, layout="fused", prefix="model.language_model.", a_log_dtype="BF16", extra=("vision", "mtp")
    )
    everything = list(tensors(REAL_CONFIG, options))
    write_sparse(tmp_path, [everything], options)
    found = read_checkpoint(tmp_path)
    assert_valid(found)
    assert found.text_bytes == 2 * 34_660_610_688
    assert {vector.add for vector in found.source.vectors if vector.name.endswith("layernorm")} == {1.0}


@pytest.mark.parametrize("seed", range(12))
def test_every_tensor_is_counted_once(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng([5, seed])
    config = random_config(rng)
    layout = ("stacked", "per_expert")[seed % 2]
    options = Options(group_size=32, layout=layout, extra=("mtp", "vision"), shards=2, scatter=True)
    write_checkpoint(tmp_path, config, options)
    everything = list(tensors(config, options))
    extra = [tensor for tensor in everything if tensor.name.startswith(("mtp", "vision"))]
    context = int(rng.integers(1, 4097))
    found = plan(tmp_path, context, threads=3, prefill_chunk=64)
    assert found.skipped == sum(tensor.nbytes for tensor in extra)
    assert found.weights == sum(tensor.nbytes for tensor in everything) - found.skipped
    text = text_config(config)
    full = text["layer_types"].count("full_attention")
    linear = len(text["layer_types"]) - full
    heads, size = text["linear_num_value_heads"], text["linear_value_head_dim"]
    key = text["linear_num_key_heads"] * text["linear_key_head_dim"]
    tokens = (context + 255) // 256 * 256
    assert found.kv_cache == full * tokens * 4 * text["num_key_value_heads"] * text["head_dim"]
    assert found.recurrent_state == 4 * linear * heads * size * text["linear_key_head_dim"]
    assert found.conv_state == 4 * linear * (text["linear_conv_kernel_dim"] - 1) * (2 * key + heads * size)
    assert found.vectors == 4 * sum(
        int(np.prod(tensor.shape))
        for tensor in everything
        if tensor not in extra and tensor.name.endswith(("norm.weight", "conv1d.weight", "A_log", "dt_bias"))
    )
    assert found.total == (
        found.weights
        + found.vectors
        + found.kv_cache
        + found.recurrent_state
        + found.conv_state
        + found.logits
        + found.scratch
    )
    assert found.session == found.kv_cache + found.recurrent_state + found.conv_state + found.logits


def test_scratch_depends_on_the_chunk_and_not_on_the_context(real: Checkpoint) -> None:
    assert plan(real, 512, prefill_chunk=128).scratch == plan(real, TOKENS, prefill_chunk=128).scratch
    small, large = (scratch_bytes(real.config, chunk, 8, 2) for chunk in (128, 1024))
    assert small < large < 8 * small + 1
    assert scratch_bytes(real.config, 128, 16, 2) > small


def test_what_the_real_model_takes_beyond_its_weights(real: Checkpoint) -> None:
    """The blocks of a layer share their working memory: all of it beside each other would be 89 MB here."""
    found = plan(real, 8192, threads=2)
    assert 50e6 < found.scratch < 60e6
    assert found.total - found.weights < 300e6


def test_the_plan_as_text_and_as_data(real: Checkpoint) -> None:
    found = plan(real, 32_768, threads=8, prefill_chunk=512)
    text = str(found)
    for fragment in ("19,508,787,456 bytes", "18.17 GiB", "32,768 tokens", "640.00 MiB", f"{found.total:,}"):
        assert fragment in text
    data = json.loads(json.dumps(found.to_dict()))
    assert data["weights"] == 19_508_787_456
    assert data["total"] == found.total
    assert data["context"] == 32_768
    assert data["threads"] == 8


@pytest.mark.parametrize(
    "arguments",
    [
        {"context": 0},
        {"context": -1},
        {"context": True},
        {"context": 1.5},
        {"context": TOKENS + 1},
        {"context": 10, "threads": 0},
        {"context": 10, "prefill_chunk": 0},
    ],
)
def test_impossible_plans(real: Checkpoint, arguments: dict[str, int]) -> None:
    with pytest.raises(InvalidArgumentError):
        plan(real, **arguments)


def test_reading_takes_no_memory_for_tensors(real: Checkpoint) -> None:
    tracemalloc.start()
    try:
        read_checkpoint(real.directory)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20
