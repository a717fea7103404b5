"""The byte limit: what is dropped, what stays, and that nothing leaks."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest
from cache_helpers import assert_like_cold, greedy

from lily.cache import limits
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


def test_where_chats_part_outlives_other_prompts(load, prompt):
    """Also where the template goes on with the same tokens for all, and only a longer snapshot is used."""
    tools, system, border = prompt(10), prompt(40), prompt(3)
    chats = [[*tools, *system, *border, *prompt(20)] for _ in range(2)]
    model = load(prefix_cache_bytes=12 * MIB)
    for ids in chats:
        model.cached_session(ids, snapshot_at=[10, 50]).close()
    for _ in range(20):
        assert model.cached_session(chats[0]).cached_tokens == 73
        model.cached_session(prompt(30)).close()
    assert model.cache.stats().evictions > 10
    assert model.cache.explain([*tools, *system, *border, *prompt(9)]).cached_tokens == 50


def test_the_first_snapshot_of_a_growing_conversation_stays(load, prompt):
    system = prompt(50)
    model = load(prefix_cache_bytes=12 * MIB)
    ids = [*system]
    for _ in range(12):
        ids += prompt(20).tolist()
        model.cached_session(ids, snapshot_at=[50]).close()
    assert model.cache.stats().evictions > 6
    assert model.cache.explain([*system, *prompt(9)]).cached_tokens == 50


def test_a_sequence_that_is_inserted_again_outlives_newer_ones(load, prompt):
    model = load()
    sessions = [model.prefill(prompt(40)) for _ in range(4)]
    model.cache.insert(sessions[0])
    model = load(prefix_cache_bytes=int(3.5 * model.cache.stats().bytes))
    sessions = [model.prefill(session.tokens) for session in sessions]
    for index in (0, 1, 2, 0, 3):
        model.cache.insert(sessions[index])
    held = [model.cache.explain(session.tokens).cached_tokens for session in sessions]
    assert held == [40, 0, 40, 40]


def test_a_snapshot_that_is_replaced_is_counted_once(load, prompt):
    """One without logits, of an interrupted prompt, gives its place to a whole one."""
    model = load(prefill_chunk=40)
    ids = prompt(100)

    def stop(done, _):
        if done >= 40:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.cached_session(ids, progress=stop)
    assert model.cache.stats().snapshots == 1
    model.cached_session(ids[:40]).close()
    assert model.cache.stats().snapshots == 1
    other = load(prefill_chunk=40)
    other.cached_session(ids[:40]).close()
    assert model.cache.stats().bytes == other.cache.stats().bytes
    # What is dropped when memory is short is one snapshot, and the sequence is gone with it alone.
    small = load(prefill_chunk=40, prefix_cache_bytes=int(1.5 * other.cache.stats().bytes))
    with pytest.raises(KeyboardInterrupt):
        small.cached_session(ids, progress=stop)
    small.cached_session(ids[:40]).close()
    assert small.cache.explain(ids[:40]).cached_tokens == 40 and small.cache.stats().evictions == 0
    small.cached_session(prompt(40)).close()
    assert small.cache.stats().evictions == 1 and small.cache.explain(ids[:40]).cached_tokens == 0


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
def test_eight_hundred_requests_hold_memory_constant(load, prompt):
    """Mixed lengths, half of them repeated, with forks, abandoned sessions and generations."""
    model = load(prefix_cache_bytes=24 * MIB)
    random = np.random.default_rng(9)
    recent = [prompt(20)]
    warm_up, sizes = 200, []
    for request in range(800):
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
    assert model.cache.stats().evictions > 400
    assert max(sizes[len(sizes) // 2 :]) - max(sizes[: len(sizes) // 2]) <= one_snapshot


@pytest.mark.parametrize("name", ["prefix_cache_bytes", "snapshot_interval"])
@pytest.mark.parametrize("value", [-1, 1.5, "1", True, 1 << 63])
def test_wrong_options_are_refused(load, name, value):
    with pytest.raises(ConfigError, match=name):
        load(**{name: value})


@pytest.mark.parametrize(
    ("container", "expected"),
    [
        (None, 1_000_000_000),
        ("max\n", 1_000_000_000),
        ("4000000000\n", 400_000_000),
        ("90000000000000\n", 1_000_000_000),
        ("garbage", 1_000_000_000),
    ],
)
def test_default_limit_is_a_tenth_of_the_memory_there_is(monkeypatch, tmp_path, container, expected):
    memory = {"SC_PHYS_PAGES": 10_000_000_000 // 4096, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr("os.sysconf", memory.__getitem__)
    monkeypatch.setattr(limits, "_CONTAINER_LIMIT", tmp_path / "memory.max")
    if container is not None:
        (tmp_path / "memory.max").write_text(container)
    assert abs(default_cache_bytes() - expected) < 4096
    memory["SC_PHYS_PAGES"] *= 1000
    assert default_cache_bytes() == (400_000_000 if container == "4000000000\n" else 2 << 30)


def test_default_limit_without_the_systems_numbers(monkeypatch, tmp_path):
    def fail(_):
        raise ValueError("unrecognized configuration name")

    monkeypatch.setattr("os.sysconf", fail)
    monkeypatch.setattr(limits, "_CONTAINER_LIMIT", tmp_path / "nowhere")
    assert default_cache_bytes() == (2 << 30) // 10
