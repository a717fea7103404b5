"""Once the thread that writes the prefix cache's files has ended, nothing waits for it any more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lily import Model
from lily.cache.disk_tier import DiskTier
from lily.errors import CheckpointError


def test_snapshots_do_not_wait_for_a_thread_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, load: Callable[..., Model]
) -> None:
    def fail(disk: DiskTier) -> None:
        raise CheckpointError("the weights were replaced")

    monkeypatch.setattr(DiskTier, "open", fail)
    model = load(prefix_cache_dir=tmp_path, prefix_cache_bytes=4 << 20)
    assert model.cache.flush(30) is False
    for number in range(20):
        model.cached_session([number + 1] * 100).close()
    assert model.cache.stats().evictions > 0, "the limit was never reached: nothing was dropped"
    assert not model.cache.store._waiting
    assert not model.cache.store._dropped


def test_what_waited_when_it_failed_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, load: Callable[..., Model]
) -> None:
    def fail(disk: DiskTier, *_: object) -> bool:
        raise RuntimeError("a fault")

    monkeypatch.setattr(DiskTier, "store", fail)
    model = load(prefix_cache_dir=tmp_path)
    for number in range(5):
        model.cached_session([number + 1] * 100).close()
    assert model.cache.flush(30) is False
    model.cache.store._writer._thread.join(30)
    assert not model.cache.store._waiting
    assert not model.cache.store._dropped
    assert model.cached_session([1] * 100).cached_tokens == 100, "what is in memory is still used"
    assert not model.cache.store._waiting
