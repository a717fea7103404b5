"""The byte limit: what is dropped, what stays, and that nothing leaks."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest
from cache_helpers import assert_like_cold, greedy

from lily.cache.limits import default_cache_bytes
from lily.errors import ConfigError

MIB = 1 << 20


def test_limit_is_kept_and_the_least_recently_used_go_first(load, prompt):
    model = load()
    prompts = [prompt(40) for _ in range(8)]
    model.cached_session(prompts[0])
    each = model.cache.stats().bytes
    model = load(prefix_cache_bytes=int(4.5 * each))
    for ids in prompts[:4]:
        model.cached_session(ids)
    assert model.cached_session(prompts[0]).cached_tokens == 40  # now the newest
    for ids in prompts[4:7]:
        model.cached_session(ids)
        assert model.cache.stats().bytes <= model.cache.stats().limit_bytes
    held = [model.cache.explain(ids).cached_tokens > 0 for ids in prompts]
    assert held == [True, False, False, False, True, True, True, False]
    assert model.cache.stats().evictions == 3 and len(model.cache) == 4


def test_shared_system_prompt_outlives_conversations(load, prompt):
    system = prompt(50)
    model = load(prefix_cache_bytes=16 * MIB)
    for _ in range(40):
        session = model.cached_session([*system, *prompt(30)], snapshot_at=[50])
    assert model.cache.stats().evictions > 20
    assert session.cached_tokens == 50


def test_a_snapshot_larger_than_the_limit_is_not_kept(load, prompt):
    model = load(prefix_cache_bytes=MIB)
    session = model.cached_session(prompt(400), snapshot_at=[100])
    assert len(model.cache) == 0 and model.cache.stats().bytes == 0
    assert_like_cold(model, session)


def test_shared_memory_is_counted_once(load, prompt):
    model = load()
    ids = prompt(1500)
    model.cached_session(ids[:1000])
    before = model.cache.stats().bytes
    model.cached_session(ids[:1001])
    config = model.config
    recurrent = (
        config.num_linear_layers
        * 4
        * (
            config.linear_value_dim * config.linear_key_head_dim
            + (config.linear_conv_kernel_dim - 1) * config.linear_conv_dim
        )
    )
    logits = 4 * config.vocab_size
    assert model.cache.stats().bytes - before <= recurrent + logits + 16384


def test_memory_of_a_dropped_snapshot_is_free_at_once(load, prompt):
    model = load()
    session = model.cached_session(prompt(700))
    snapshot = session.snapshot()
    session.close()
    shared = snapshot.own_bytes
    model.cache.clear()
    assert snapshot.own_bytes == snapshot.bytes > shared + 2 * MIB


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the process's size from /proc")
def test_two_thousand_requests_hold_memory_constant(load, prompt):
    """Mixed lengths, half of them repeated, with forks, abandoned sessions and generations."""
    model = load(prefix_cache_bytes=24 * MIB)
    random = np.random.default_rng(9)
    recent = [prompt(20)]
    warm_up, sizes = 400, []
    for request in range(2000):
        if random.random() < 0.5:
            base = recent[random.integers(len(recent))]
            ids = np.concatenate([base[: random.integers(1, len(base) + 1)], random.integers(0, 4000, 3)])[:20]
        else:
            ids = random.integers(0, 4000, random.choice([2, 3, 7, 16]))
        recent = [*recent[-20:], ids]
        session = model.cached_session(ids, snapshot_at=[len(ids) // 2])
        if request % 3 == 0:
            greedy(session, 2)
            model.cache.insert(session)
        if request % 5 == 0:
            session.fork().decode(3)
        if request % 2:
            session.close()
        assert model.cache.stats().bytes <= 24 * MIB
        if request >= warm_up and request % 100 == 99:
            gc.collect()
            sizes.append(resident_bytes())
    one_snapshot = model.prefill(prompt(40)).snapshot().bytes
    assert model.cache.stats().evictions > 1000
    assert max(sizes[len(sizes) // 2 :]) - max(sizes[: len(sizes) // 2]) <= one_snapshot


@pytest.mark.parametrize("name", ["prefix_cache_bytes", "snapshot_interval"])
@pytest.mark.parametrize("value", [-1, 1.5, "1", True, 1 << 63])
def test_wrong_options_are_refused(load, name, value):
    with pytest.raises(ConfigError, match=name):
        load(**{name: value})


def test_default_limit_fits_the_memory():
    memory = int(Path("/proc/meminfo").read_text().split()[1]) * 1024 if Path("/proc/meminfo").exists() else None
    limit = default_cache_bytes()
    assert 0 < limit <= 2 << 30
    if memory is not None:
        assert limit <= memory // 10
