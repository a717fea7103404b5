"""Draws: their distribution, their numbers, ties and extremes, and which types the fields take."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sampling_reference import distribution

from lily import Sampling, _core
from lily.errors import BackendError, InvalidArgumentError

DRAWS = 20_000
SETTINGS = [
    Sampling(),
    Sampling(temperature=0.6, top_k=20, top_p=0.95),
    Sampling(temperature=0.3),
    Sampling(temperature=2.5, top_k=7),
    Sampling(top_p=0.5),
    Sampling(top_p=1e-9),
    Sampling(min_p=0.2),
    Sampling(min_p=1.0),
    Sampling(temperature=1.3, top_k=50, top_p=0.9, min_p=0.05),
    Sampling(top_k=10_000),
    Sampling(top_k=2, top_p=0.999),
    Sampling(temperature=1e-3),
    Sampling(temperature=1e3, top_p=0.7),
]


def draw(logits: NDArray[np.float32], sampling: Sampling, seed: int, count: int, start: int = 0) -> NDArray[np.int64]:
    sampler, native = _core.Sampler(), sampling.to_core()
    return np.array([sampler.sample(logits, native, seed, start + place) for place in range(count)])


def random_logits(seed: int, size: int) -> NDArray[np.float32]:
    """Normal logits; some equal, some minus infinity."""
    random = np.random.default_rng(seed)
    logits = random.normal(0, 3, size).astype(np.float32)
    if seed % 2:
        logits = np.round(logits)
    logits[random.random(size) < 0.1] = -np.inf
    logits[random.integers(size)] = 1.0
    return logits


@pytest.mark.parametrize(
    "sampling",
    SETTINGS,
    ids=range(len(SETTINGS)),
)
def test_distribution(sampling: Sampling) -> None:
    """Pearson's chi-square of 20,000 draws stays below the 1 - 1e-6 quantile; the seed is fixed."""
    logits = random_logits(9, 40)
    filters = (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p)
    expected = distribution(logits.astype(np.float64), *filters) * DRAWS
    counts = np.bincount(draw(logits, sampling, 123, DRAWS), minlength=40)
    assert counts[expected == 0].sum() == 0
    common = expected >= 5
    observed = np.append(counts[common], counts[~common].sum())
    wanted = np.append(expected[common], expected[~common].sum())
    observed, wanted = observed[wanted > 0], wanted[wanted > 0]
    freedom = len(wanted) - 1
    statistic = float(((observed - wanted) ** 2 / wanted).sum())
    # Wilson and Hilferty's approximation of the quantile, z = 4.75.
    limit = freedom * (1 - 2 / (9 * freedom) + 4.75 * np.sqrt(2 / (9 * freedom))) ** 3 if freedom else 1e-9
    assert statistic <= limit


def test_ties_go_to_the_lower_id() -> None:
    logits = np.array([1, 5, 0, 5, 5, -3], dtype=np.float32)
    assert set(draw(logits, Sampling.greedy(), 0, 20)) == {1}
    assert set(draw(logits, Sampling(top_k=1), 0, 20)) == {1}
    assert set(draw(logits, Sampling(top_k=2), 0, 100)) == {1, 3}
    assert set(draw(logits, Sampling(top_p=0.01), 0, 20)) == {1}
    assert set(draw(logits, Sampling(top_k=3), 0, 100)) == {1, 3, 4}
    assert set(draw(logits, Sampling(temperature=1e-300), 0, 100)) == {1, 3, 4}


def test_extreme_temperatures() -> None:
    logits = np.array([3e38, -3e38, 0, 2.9e38, -np.inf], dtype=np.float32)
    assert set(draw(logits, Sampling(temperature=1e-300), 0, 50)) == {0}
    assert set(draw(logits, Sampling(), 0, 50)) == {0}
    assert set(draw(logits, Sampling(temperature=1e300), 0, 400)) == {0, 1, 2, 3}  # never minus infinity


@pytest.mark.parametrize("sampling", [Sampling(), Sampling.greedy(), Sampling(top_k=1), Sampling(top_k=3, top_p=0.5)])
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("place", [0, 17, 299])
def test_not_finite(sampling: Sampling, value: float, place: int) -> None:
    logits = random_logits(2, 300)
    logits[place] = value
    with pytest.raises(BackendError, match="not finite"):
        _core.Sampler().sample(logits, sampling.to_core(), 0, 0)


def test_nothing_possible() -> None:
    for value in (-np.inf, np.nan):
        with pytest.raises(BackendError, match="not finite"):
            _core.Sampler().sample(np.full(9, value, dtype=np.float32), Sampling().to_core(), 0, 0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("temperature", "1"),
        ("temperature", None),
        ("top_k", -1),
        ("top_k", 1.5),
        ("top_k", 1 << 70),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_p", float("nan")),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("min_p", float("nan")),
        ("seed", -1),
        ("seed", 1 << 64),
        ("seed", 1.0),
        ("seed", True),
        ("seed", "1"),
    ],
)
def test_wrong_fields(field: str, value: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=field):
        Sampling(**{field: value})


def test_fields_of_numpy() -> None:
    sampling = Sampling(np.float32(0.5), np.int64(3), np.float64(0.9), np.float32(0.1), np.uint64(1 << 63))
    assert sampling.seed == 1 << 63 and type(sampling.seed) is int
    assert len(draw(random_logits(1, 30), sampling, 0, 3)) == 3


def test_numbers_are_uniform() -> None:
    """Over positions, over seeds and in pairs: means, 100 bins, no correlation; the numbers are fixed."""
    count = 20_000
    for numbers in (
        np.array([_core.uniform_at(7, position) for position in range(count)]),
        np.array([_core.uniform_at(seed, 7) for seed in range(count)]),
        np.array([_core.uniform_at(1 << 60, position << 40) for position in range(count)]),
        np.array([_core.uniform_at(place, place) for place in range(count)]),
    ):
        assert numbers.min() >= 0 and numbers.max() < 1
        assert len(np.unique(numbers)) == count
        bins = np.bincount((numbers * 100).astype(int), minlength=100)
        assert ((bins - count / 100) ** 2 / (count / 100)).sum() < 180  # 99 degrees of freedom: p < 2e-6
        assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.035
        assert abs(numbers.mean() - 0.5) < 0.01


def test_numbers_do_not_depend_on_the_order_of_calls() -> None:
    forward = [_core.uniform_at(3, position) for position in range(100)]
    backward = [_core.uniform_at(3, position) for position in reversed(range(100))]
    assert forward == backward[::-1]
    logits = random_logits(4, 100)
    assert list(draw(logits, Sampling(), 3, 50, start=50)) == list(draw(logits, Sampling(), 3, 100))[50:]
