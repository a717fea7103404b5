"""Forks, snapshots and restores: everything that goes on from a shared state equals a cold run, bit for bit."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from cache_helpers import assert_like_cold, assert_same_logits, cold_greedy, greedy

from lily import Sampling, Snapshot, _core
from lily.errors import BusyError, ClosedError, InvalidArgumentError

# Around the borders of the blocks of 256 positions in which keys and values are kept.
POSITIONS = [1, 2, 37, 255, 256, 257, 511, 512, 600]


def ledger_bytes(*snapshots: Snapshot) -> int:
    ledger = _core.MemoryLedger()
    for snapshot in snapshots:
        ledger.add(snapshot.core)
    return ledger.bytes


@pytest.mark.parametrize("position", POSITIONS)
def test_fork_and_original_both_equal_a_cold_run(model, prompt, position):
    session = model.prefill(prompt(position))
    fork = session.fork()
    assert fork.tokens == session.tokens
    assert_same_logits(fork, session)
    fork.prefill(prompt(83))
    session.prefill(prompt(301))
    for one in (fork, session):
        assert_like_cold(model, one)


def test_three_forks_interleaved_token_by_token(model, prompt):
    base = model.prefill(prompt(251))
    forks = [base.fork() for _ in range(3)]
    parts = [prompt(19) for _ in forks]
    for step in range(19):
        for fork, part in zip(forks, parts, strict=True):
            fork.decode(int(part[step]))
    assert_like_cold(model, base)
    for fork in forks:
        assert_like_cold(model, fork)


def test_fork_of_a_generation_has_its_last_token(model, prompt):
    ids = prompt(70)
    session = model.prefill(ids)
    first = greedy(session, 9)
    fork = session.fork()
    assert fork.tokens == [*ids, *first]
    expected = cold_greedy(model, ids, 30)[9:]
    assert greedy(fork, 21) == expected
    assert greedy(session, 21) == expected


def test_fork_while_a_generation_is_in_use(model, prompt):
    ids = prompt(40)
    session = model.prefill(ids)
    forks = []
    tokens = []
    for token in session.generate(12, sampling=Sampling.greedy(), stop_tokens=()):
        tokens.append(token)
        forks.append(session.fork())
    assert tokens == cold_greedy(model, ids, 12)
    for count, fork in enumerate(forks, 1):
        assert fork.tokens == [*ids, *tokens[:count]]
    assert greedy(forks[3], 8) == tokens[4:]


def test_fork_has_its_own_seed(model, prompt):
    session = model.prefill(prompt(30))
    draws = [list(session.fork(seed=seed).generate(24, sampling=Sampling(), stop_tokens=())) for seed in (5, 5, 6)]
    assert draws[0] == draws[1] != draws[2]


def test_fork_copies_no_keys_or_values(model, prompt):
    session = model.prefill(prompt(1900))
    before = session.snapshot()
    fork = session.fork()
    assert ledger_bytes(before, fork.snapshot()) - before.bytes < 16384  # the fork's token ids
    fork.decode(7)
    session.decode(9)
    after = ledger_bytes(before, fork.snapshot(), session.snapshot())
    config = model.config
    recurrent = (
        config.num_linear_layers
        * 4
        * (
            config.linear_value_dim * config.linear_key_head_dim
            + (config.linear_conv_kernel_dim - 1) * config.linear_conv_dim
        )
    )
    block = config.num_full_attention_layers * 256 * config.key_value_dim * 2 * 2
    # Both went on: each has recurrent states of its own, and only the second to write has copied the last block.
    assert after - before.bytes <= 2 * recurrent + block + 65536
    assert session.state_bytes > 2 * (recurrent + block)


def test_restore_goes_back_as_often_as_wanted(model, prompt):
    session = model.prefill(prompt(300))
    snapshot = session.snapshot()
    expected = cold_greedy(model, snapshot.tokens, 20)
    for count in (20, 1, 5, 20):
        assert greedy(session, count) == expected[:count]
        session.prefill(prompt(400))
        session.restore(snapshot)
        assert session.position == snapshot.position == 300
    assert_like_cold(model, session)


def test_snapshot_outlives_its_session_and_reset(model, prompt):
    session = model.prefill(prompt(260))
    snapshot = session.snapshot()
    session.reset()
    session.prefill(prompt(270))
    assert_like_cold(model, session)
    session.close()
    assert snapshot.own_bytes == snapshot.bytes
    other = model.session()
    other.prefill(prompt(10))
    other.restore(snapshot)
    assert_like_cold(model, other)


def test_empty_session_forks_and_restores(model, prompt):
    session = model.session()
    snapshot = session.snapshot()
    fork = session.fork()
    assert fork.position == 0 and fork.logits is None
    fork.prefill(prompt(30))
    fork.restore(snapshot)
    assert fork.tokens == [] and fork.logits is None
    fork.prefill(prompt(33))
    assert_like_cold(model, fork)


def test_closed_snapshot_lets_go_of_memory(model, prompt):
    session = model.prefill(prompt(500))
    with session.snapshot() as first, session.snapshot() as second:
        session.close()
        assert first.own_bytes < 65536  # all shared with the second
        second.close()
        assert first.own_bytes == first.bytes
    assert repr(first) == "<lily.Snapshot closed>"
    first.close()
    for use in (lambda: first.position, lambda: first.tokens, lambda: first.bytes):
        with pytest.raises(ClosedError):
            use()
    with pytest.raises(ClosedError), model.session() as other:
        other.restore(first)


def test_snapshot_of_another_model_is_refused(model, load, prompt):
    snapshot = load().prefill(prompt(9)).snapshot()
    session = model.prefill(prompt(12))
    with pytest.raises(InvalidArgumentError, match="another model"):
        session.restore(snapshot)
    assert_like_cold(model, session)


def test_closing_the_model_closes_snapshots(load, prompt):
    model = load()
    session = model.prefill(prompt(9))
    snapshot = session.snapshot()
    model.close()
    assert snapshot.closed
    for use in (session.fork, session.snapshot):
        with pytest.raises(ClosedError):
            use()


def test_a_session_in_use_is_not_forked(model, prompt):
    session = model.session()

    def during(done, total):
        for use in (session.fork, session.snapshot):
            with pytest.raises(BusyError):
                use()

    session.prefill(prompt(30), progress=during)
    assert_like_cold(model, session)


def test_snapshot_cannot_be_pickled(model, prompt):
    with pytest.raises(TypeError, match="save"):
        pickle.dumps(model.prefill(prompt(3)).snapshot())


def test_threads_go_on_from_one_snapshot(model, prompt):
    snapshot = model.prefill(prompt(253)).snapshot()
    parts = [prompt(11 + index) for index in range(8)]

    def run(part):
        session = model.session()
        session.restore(snapshot)
        session.prefill(part)
        return session, greedy(session, 6)

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(run, parts))
    for part, (_, tokens) in zip(parts, results, strict=True):
        assert tokens == cold_greedy(model, [*snapshot.tokens, *part], 6)


@pytest.mark.parametrize("seed", range(4))
def test_random_operations_equal_cold_runs(model, seed):
    """Sessions that extend, fork, snapshot, restore, reset and close in any order never see each other."""
    random = np.random.default_rng(seed)
    sessions = [model.session()]
    snapshots: list[Snapshot] = []
    for _ in range(90):
        session = sessions[random.integers(len(sessions))]
        action = random.choice(["extend", "extend", "generate", "fork", "snapshot", "restore", "reset", "close"])
        if action == "extend" and session.position < 1200:
            session.prefill(random.integers(0, 4000, random.choice([1, 3, 60, 200, 256])))
        elif action == "generate" and session.logits is not None and session.position < 1200:
            greedy(session, int(random.integers(1, 5)))
        elif action == "fork":
            sessions.append(session.fork())
        elif action == "snapshot":
            snapshots.append(session.snapshot())
        elif action == "restore" and snapshots:
            session.restore(snapshots.pop(random.integers(len(snapshots))))
        elif action == "reset" and random.random() < 0.3:
            session.reset()
        elif action == "close" and len(sessions) > 1:
            sessions.remove(session)
            session.close()
    for snapshot in snapshots:
        sessions.append(model.session())
        sessions[-1].restore(snapshot)
    for session in sessions:
        if session.position:
            session.decode(11)  # computes a token that a generation has left
            assert_like_cold(model, session, 3)
