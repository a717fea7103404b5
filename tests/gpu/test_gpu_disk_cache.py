"""Snapshots of a GPU engine are written by a thread of their own while the engine goes on."""

from __future__ import annotations

import numpy as np

import lily
from engine_helpers import random_ids


def test_written_while_the_engine_computes(checkpoint, tmp_path):
    shared = random_ids(80, seed=1)
    prompts = [[*shared, *random_ids(30, seed=seed)] for seed in range(2, 6)]
    greedy = lily.Sampling.greedy()
    expected = {}
    with lily.Model.load(checkpoint, backend="sim", prefix_cache_dir=tmp_path) as model:
        for index, ids in enumerate(prompts):
            with model.cached_session(ids, snapshot_at=[80]) as session:
                model.cache.flush(0)  # writing begins now
                expected[index] = list(session.generate(6, sampling=greedy, stop_tokens=()))
                model.cache.insert(session)
        assert model.cache.flush(120)
    with lily.Model.load(checkpoint, backend="sim", prefix_cache_dir=tmp_path) as model:
        for index, ids in enumerate(prompts):
            with model.cached_session(ids) as session:
                assert session.cached_tokens == len(ids)
                assert list(session.generate(6, sampling=greedy, stop_tokens=())) == expected[index]
        with model.cached_session([*shared, 5]) as session:
            assert session.cached_tokens == 80
            assert np.isfinite(session.logits).all()
