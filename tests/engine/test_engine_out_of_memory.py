"""When the system refuses memory or threads, the process lives: an exception, and sessions that say what they lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine_helpers import expect_success, run_python

LIMIT = """
import resource, sys
import numpy as np
import lily
from engine_helpers import random_ids
from lily.errors import BackendError, MemoryLimitError

def limit(more):
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + more, resource.RLIM_INFINITY))

def lift():
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
"""

PREFILL = (
    LIMIT
    + """
ids = random_ids(700, 1)
with lily.Model.load(sys.argv[1], threads=2, prefill_chunk=100) as chunked:
    expected = chunked.prefill(ids).logits.copy()
failures = 0
held = int(sys.argv[3])
limits = (0, 64, 128, 192, 256, 384, 512, 1024, 2048, 65536)
for kilobytes in limits:
    with lily.Model.load(sys.argv[1], threads=int(sys.argv[2]), prefill_chunk=700) as model:
        session, other = model.session(), model.prefill(ids[:20])
        for begin in range(0, held, 20):  # small pieces need little working memory
            session.prefill(ids[begin : min(begin + 20, held)])
        fork, snapshot = session.fork(), session.snapshot()  # what they share with the session outlives its failure
        limit(kilobytes << 10)
        try:
            session.prefill(ids[held:])
        except MemoryLimitError as error:
            failures += 1
            lift()
            assert "memory" in str(error)
            assert session.tokens == ids[:held] and session.logits is None
            for use in (lambda: session.decode(1), lambda: next(session.generate(max_tokens=1))):
                try:
                    use()
                    raise AssertionError("the lost state was used")
                except BackendError as error:
                    assert "reset()" in str(error)
            if failures % 2:
                session.restore(snapshot)
            else:
                session.reset()
                session.prefill(ids[:held])
            session.prefill(ids[held:])
        lift()
        assert np.array_equal(session.logits, expected)
        fork.prefill(ids[held:])
        assert np.array_equal(fork.logits, expected)
        other.prefill(ids[20:])
        assert np.array_equal(other.logits, expected)
assert 3 <= failures < len(limits), failures
"""
)

SCORE = (
    LIMIT
    + """
ids = random_ids(2000, 1)
with lily.Model.load(sys.argv[1], threads=2, prefill_chunk=2000) as model:
    session = model.prefill(ids[:5])
    limit(4 << 20)
    try:
        session.score(ids)
        raise AssertionError("the limit had no effect")
    except MemoryLimitError:
        pass
    lift()
    assert len(session.score(ids)) == 1999
    assert np.array_equal(session.decode(ids[5]), model.prefill(ids[:6]).logits)
"""
)

TOO_MANY_THREADS = (
    LIMIT
    + """
limit(1 << 30)  # the stacks of 1024 threads take more
try:
    lily.Model.load(sys.argv[1], threads=1024)
    raise AssertionError("the limit had no effect")
except (BackendError, MemoryLimitError) as error:
    assert isinstance(error, BackendError) and "threads=" in str(error), error
lift()
with lily.Model.load(sys.argv[1], threads=2) as model:
    model.prefill([1, 2, 3])
"""
)


def run_limited(code: str, *arguments: object) -> None:
    # Large blocks come from the system and go back to it, so that the limit bears on every one.
    allocator = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}
    expect_success(run_python(code, *arguments, environment=allocator))


@pytest.mark.parametrize("held", [1, 300])
@pytest.mark.parametrize("threads", [1, 3])
def test_in_prefill(checkpoint: Path, threads: int, held: int) -> None:
    run_limited(PREFILL, checkpoint, threads, held)


def test_in_score(checkpoint: Path) -> None:
    run_limited(SCORE, checkpoint)


def test_too_many_threads(checkpoint: Path) -> None:
    run_limited(TOO_MANY_THREADS, checkpoint)
