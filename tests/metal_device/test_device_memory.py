"""What a device's memory limit does to loading, and weights that are read instead of mapped."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lily
from gpu_models import GPU_CONFIG
from lily import _core, _test_doubles
from lily.checkpoint import read_checkpoint
from lily.errors import ConfigError, MemoryLimitError
from lily.model.native import native_config, native_source
from synthetic import write_checkpoint


def load_on(device: Any, folder: Path, max_context: int = 0) -> Any:
    checkpoint = read_checkpoint(folder)
    options = _core.EngineOptions()
    options.backend = "test"
    options.max_context = max_context
    return _core.gpu.model_on(device, native_config(checkpoint.config), native_source(checkpoint.source), options)


def device_with(limit: int) -> Any:
    device = _test_doubles.CallbackDevice(lambda launches: None)
    device.memory_limit = limit
    return device


def needed_bytes(folder: Path, max_context: int) -> tuple[int, str]:
    """What a refusal says that the model needs, in GiB hundredths at most too low, found by a hopeless limit."""
    with pytest.raises(MemoryLimitError) as refusal:
        load_on(device_with(1), folder, max_context)
    return 0, str(refusal.value)


def smallest_limit(folder: Path, max_context: int) -> int:
    """The smallest limit that is not refused, by halving."""
    low, high = 0, 1 << 34
    while low + 1 < high:
        middle = (low + high) // 2
        try:
            load_on(device_with(middle), folder, max_context)
            high = middle
        except MemoryLimitError:
            low = middle
    return high


def test_a_device_without_a_limit_takes_anything(small_checkpoint: Path) -> None:
    assert load_on(device_with(0), small_checkpoint).options.max_context > 0


def test_refusal_names_the_numbers_and_the_remedies(small_checkpoint: Path) -> None:
    with pytest.raises(MemoryLimitError) as refusal:
        load_on(device_with(1000), small_checkpoint, 512)
    text = str(refusal.value)
    for word in ("512 tokens", "weights", "KV cache", "recurrent state", "scratch", "at most 0.00 GiB", "cpu"):
        assert word in text, word
    total = int(re.search(r"make the limit (\d+)", text)[1])  # the device's own remedy
    assert total == smallest_limit(small_checkpoint, 512)


def test_the_limit_grows_with_the_context_by_the_cache(small_checkpoint: Path) -> None:
    config = read_checkpoint(small_checkpoint).config
    a_position = config.num_full_attention_layers * 2 * config.num_key_value_heads * config.head_dim * 2
    longest = config.max_position_embeddings
    short, long = longest // 2, longest
    grown = smallest_limit(small_checkpoint, long) - smallest_limit(small_checkpoint, short)
    assert grown == (long - short) * a_position


@pytest.mark.parametrize(("context", "fits"), [(1000, 768), (1024, 768), (1025, 1024), (257, 256)])
def test_a_refusal_names_the_longest_context_that_fits(small_checkpoint: Path, context: int, fits: int) -> None:
    """In steps of 256 tokens; it is just the next one where the limit lacks a byte for what was asked."""
    limit = smallest_limit(small_checkpoint, context) - 1
    with pytest.raises(MemoryLimitError, match=rf"lower max_context \({fits} fits\)"):
        load_on(device_with(limit), small_checkpoint, context)
    assert load_on(device_with(limit), small_checkpoint, fits).options.max_context == fits


def test_a_long_context_that_nobody_asked_for_is_shortened(tmp_path: Path) -> None:
    """To the longest one that fits, as long as that is worth having."""
    folder = write_checkpoint(tmp_path, {**GPU_CONFIG, "max_position_embeddings": 9000}, seed=2, group_size=32)
    for asked, left in ((9000, 8960), (8960, 8704), (4097, 4096)):
        limit = smallest_limit(folder, asked) - 1
        assert load_on(device_with(limit), folder).options.max_context == left
        with pytest.raises(MemoryLimitError, match=f"{asked} tokens"):
            load_on(device_with(limit), folder, asked)
    with pytest.raises(MemoryLimitError, match="3840 fits"):
        load_on(device_with(smallest_limit(folder, 4096) - 1), folder)


def test_a_context_that_nobody_asked_for_becomes_what_fits(small_checkpoint: Path) -> None:
    config = read_checkpoint(small_checkpoint).config
    longest = config.max_position_embeddings
    enough = smallest_limit(small_checkpoint, longest)
    assert load_on(device_with(enough), small_checkpoint).options.max_context == longest
    # Shorter than what is worth having: refused, as a context that was asked for is.
    assert longest <= 4096
    with pytest.raises(MemoryLimitError, match="fits"):
        load_on(device_with(enough - 1), small_checkpoint)
    with pytest.raises(MemoryLimitError, match=f"{longest} tokens"):
        load_on(device_with(enough - 1), small_checkpoint, longest)


def test_read_weights_compute_what_mapped_ones_do(small_checkpoint: Path) -> None:
    ids = np.random.default_rng(1).integers(0, 40, 23).tolist()
    for backend in ("cpu", "sim") if "sim" in lily.available_backends() else ("cpu",):
        logits = []
        for weights in ("mmap", "read"):
            with lily.Model.load(small_checkpoint, backend=backend, weights=weights, threads=1) as model:
                logits.append(model.prefill(ids).logits.copy())
        assert np.array_equal(*logits), backend


def test_read_weights_do_not_change_with_the_file(small_checkpoint: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    folder.mkdir()
    for path in small_checkpoint.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    ids = [3, 1, 4, 1, 5]
    with lily.Model.load(folder, backend="cpu", weights="read", threads=1) as model:
        before = model.prefill(ids).logits.copy()
        for path in folder.glob("*.safetensors"):
            with path.open("r+b") as file:
                size = path.stat().st_size
                file.seek(size // 2)
                file.write(b"\x55" * (size // 4))
        assert np.array_equal(model.prefill(ids).logits, before)


def test_other_ways_of_loading_weights_are_refused(small_checkpoint: Path) -> None:
    with pytest.raises(ConfigError, match='"mmap" or "read", not "copy"'):
        lily.Model.load(small_checkpoint, backend="cpu", weights="copy")
