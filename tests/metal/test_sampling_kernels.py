"""The kernels that choose tokens: the very tokens of the CPU sampler, for any logits, filters, seeds and positions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from device_runner import Launch, pack, run, run_stages, sim
from lily import Sampling, _core
from lily.errors import BackendError
from lily_args import ARGS

Array = np.ndarray[Any, Any]
VOCABULARY = 248_320
ORDERS = [{"order": "forward"}, {"order": "reverse"}, {"order": "random", "seed": 5}]
PARTS, ARGMAX_THREADS = ARGS.kArgmaxParts, ARGS.kArgmaxThreads


def sample_args(size: int, sampling: Sampling, seed: int = 0) -> bytes:
    scale, largest = 0.0, float(np.finfo(np.float32).max)
    if sampling.temperature > 0:
        with np.errstate(over="ignore"):
            exact = np.float64(1.4426950408889634) / np.float64(sampling.temperature) * 2.0**24
        scale = float(np.float32(min(exact, largest))) if exact >= np.finfo(np.float32).tiny else 0.0
    fractions = [round(fraction * 2**31) for fraction in (sampling.top_p, sampling.min_p)]
    return pack(size, scale, min(sampling.top_k, size), *fractions, seed & 0xFFFFFFFF, seed >> 32)


def sampled(device: Any, logits: Array, sampling: Sampling, seed: int, position: int) -> int:
    token = np.full(1, -7, np.int32)
    buffers = {0: logits, 1: token, 2: np.array([position], np.int32)}
    run(
        device,
        "sample_token",
        buffers,
        args=sample_args(len(logits), sampling, seed),
        threadgroups=(1,),
        threads=ARGS.kSampleThreads,
    )
    return int(token[0])


def greedy(device: Any, logits: Array) -> int:
    best, index, token = np.zeros(PARTS, np.float32), np.zeros(PARTS, np.int32), np.full(1, -7, np.int32)
    args = sample_args(len(logits), Sampling.greedy())
    stages = [
        [Launch("argmax_partial", {0: logits, 1: best, 2: index}, (PARTS,), ARGMAX_THREADS, args)],
        [Launch("argmax_final", {0: best, 1: index, 2: token}, (1,), ARGMAX_THREADS, args)],
    ]
    run_stages(device, stages)
    return int(token[0])


def on_cpu(logits: Array, sampling: Sampling, seed: int = 0, position: int = 0) -> int:
    """The CPU sampler's token; -1 where it refuses the logits."""
    try:
        return int(_core.Sampler().sample(logits, sampling.to_core(), seed, position))
    except BackendError:
        return -1


def logits_of(kind: str, size: int, seed: int) -> Array:
    """Logits that stress one part of the sampler."""
    random = np.random.default_rng([seed, size])
    normal = random.normal(0, 3, size).astype(np.float32)
    if kind == "ties":
        return np.round(normal)
    if kind == "equal":
        return np.full(size, -2.5, np.float32)
    if kind == "flat":
        return (normal * np.float32(1e-3)).astype(np.float32)
    if kind == "forbidden":
        normal[random.random(size) < 0.9] = -np.inf
        normal[random.integers(size)] = 1.0
    elif kind == "huge":
        return (normal * np.float32(2e37)).astype(np.float32)
    elif kind == "tiny":
        return (normal * np.float32(1e-40)).astype(np.float32)  # subnormals and zeros of both signs
    elif kind == "zeros":
        return np.where(normal > 0, np.float32(0.0), np.float32(-0.0))
    elif kind == "peaked":
        normal[random.integers(size)] = 60.0
    elif kind == "rising":
        return np.arange(size, dtype=np.float32) / np.float32(64)  # a thread's own maximum is no outlier
    return normal


KINDS = ["normal", "ties", "equal", "flat", "forbidden", "huge", "tiny", "zeros", "peaked", "rising"]
FILTERS = [
    Sampling(),
    Sampling(temperature=0.6, top_k=20, top_p=0.95),
    Sampling(temperature=1.0, top_p=0.5),
    Sampling(top_p=1e-9),
    Sampling(top_p=1e-12),
    Sampling(top_p=1 - 1e-7),
    Sampling(top_k=1),
    Sampling(top_k=2, top_p=0.999),
    Sampling(top_k=256),
    Sampling(top_k=257, min_p=0.01),
    Sampling(temperature=2.0, top_k=700, top_p=0.9, min_p=0.001),
    Sampling(top_k=1 << 40, top_p=0.97),
    Sampling(min_p=0.2),
    Sampling(min_p=1.0),
    Sampling(min_p=1e-12),
    Sampling(temperature=1.3, top_p=0.9999, min_p=1e-4),
    Sampling(temperature=1e-300),
    Sampling(temperature=1e-3),
    Sampling(temperature=1e3, top_p=0.7),
    Sampling(temperature=1e37, top_k=300),
    Sampling(temperature=1e300),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 5, 997, 4099])
def test_samples_the_token_of_the_cpu(kind: str, size: int) -> None:
    random = np.random.default_rng(size)
    for number, sampling in enumerate(FILTERS):
        logits = logits_of(kind, size, number)
        seed, position = int(random.integers(1 << 63)) * 2 + number % 2, int(random.integers(1 << 20))
        token = sampled(sim(), logits, sampling, seed, position)
        assert token == on_cpu(logits, sampling, seed, position), sampling
        assert 0 <= token < size and logits[token] > -np.inf


@pytest.mark.parametrize("top_k", [0, 400])
@pytest.mark.parametrize("top_p", [0.25, 0.5])
@pytest.mark.parametrize("count", [2, 4, 400])
def test_equal_logits_to_the_boundary_of_top_p(count: int, top_p: float, top_k: int) -> None:
    """The candidate that reaches top-p is the last one: of equal ones just that share may be drawn."""
    logits = np.full(count, 1.5, np.float32)
    sampling = Sampling(top_p=top_p, top_k=top_k)
    tokens = [sampled(sim(), logits, sampling, 13, position) for position in range(40)]
    assert tokens == [on_cpu(logits, sampling, 13, position) for position in range(40)]
    assert max(tokens) < max(1, count * top_p)


@pytest.mark.parametrize("top_k", [0, 2, 3])
def test_tied_maxima_are_all_above_min_p(top_k: int) -> None:
    """The mass of a maximum is not above itself: with min-p 1 all that equal the maximum remain."""
    logits = np.array([0.5, 2.0, -1.0, 2.0, 2.0], np.float32)
    sampling = Sampling(min_p=1.0, top_k=top_k)
    tokens = [sampled(sim(), logits, sampling, 17, position) for position in range(60)]
    assert tokens == [on_cpu(logits, sampling, 17, position) for position in range(60)]
    assert set(tokens) == ({1, 3} if top_k == 2 else {1, 3, 4})


@pytest.mark.parametrize("size", [3, 500, 515, 2051])
def test_many_draws(size: int) -> None:
    """One set of filters, many positions: the draws differ and all agree."""
    logits = logits_of("normal", size, 1)
    for sampling in (Sampling(temperature=1.5), Sampling(temperature=3.0, top_k=400, top_p=0.9)):
        tokens = [sampled(sim(), logits, sampling, 11, position) for position in range(25)]
        assert tokens == [on_cpu(logits, sampling, 11, position) for position in range(25)]
        assert len(set(tokens)) > 1


@pytest.mark.parametrize(
    ("kind", "sampling"),
    [
        ("normal", Sampling(temperature=0.6, top_k=20, top_p=0.95)),
        ("normal", Sampling()),
        ("ties", Sampling(top_k=50_000, top_p=0.99, min_p=1e-6)),
        ("equal", Sampling(top_p=0.7)),
        ("flat", Sampling(temperature=1.0)),
    ],
)
def test_the_real_vocabulary(kind: str, sampling: Sampling) -> None:
    logits = logits_of(kind, VOCABULARY, 4)
    for position in (0, 262_143):
        assert sampled(sim(), logits, sampling, 9, position) == on_cpu(logits, sampling, 9, position)


@pytest.mark.parametrize("sampling", [FILTERS[1], FILTERS[2], FILTERS[9], FILTERS[10]])
@pytest.mark.parametrize(("kind", "size"), [("normal", 2049), ("ties", 1023), ("equal", 2000)])
def test_order_of_threads_and_checks(kind: str, size: int, sampling: Sampling) -> None:
    logits = logits_of(kind, size, 2)
    expected = on_cpu(logits, sampling, 3, 8)
    for device in [sim(checked=True), *[sim(**options) for options in ORDERS]]:
        assert sampled(device, logits, sampling, 3, 8) == expected


def mass(logits: Array, scale: np.float32) -> Array:
    """base/sampling_arithmetic.h's masses, written down again."""
    distance = np.minimum(logits.max() - logits, np.finfo(np.float32).max)
    exponent = np.where(distance < np.float32(2.0**-100), np.float32(0), distance) * scale
    bits = np.minimum(exponent, np.float32(41 << 24)).astype(np.uint64)
    fraction = (bits << np.uint64(8)) & np.uint64(0xFFFFFFFF)
    value = np.full(len(logits), 234782, np.uint64)
    for coefficient in (2739202, 20572593, 119165869, 515877823, 1488521945, 1 << 31):
        value = np.uint64(coefficient) - ((fraction * value) >> np.uint64(32))
    return np.where(exponent <= 40 << 24, (value << np.uint64(9)) >> (bits >> np.uint64(24)), np.uint64(0))


def test_masses_are_exponentials_and_fall_with_the_logit() -> None:
    """Relative error as bounded in sampling_arithmetic.h; each fraction of the exponent once, and at its wraps."""
    for exponents in (np.arange(1 << 24), np.arange(0, 40 << 24, 32749)):
        logits = -exponents.astype(np.float32)
        masses = mass(logits, np.float32(1.0))
        assert (np.diff(masses.astype(np.int64)) <= 0).all()
        exact = 2.0 ** (40 + logits.astype(np.float64) / 2**24)
        assert (np.abs(masses - exact) <= 1 + exact * 9 * 2.0**-30).all()
    values = np.random.default_rng(1).normal(0, 5, 100_003).astype(np.float32)
    for temperature in (0.3, 1.0, 2.7):
        scale = np.float32(2.0**24 * np.log2(np.e) / temperature)
        exact = 2.0**40 * np.exp((values.astype(np.float64) - values.max()) / temperature)
        assert (np.abs(mass(values, scale) - exact) <= 1 + exact * 5.1e-6).all()


@pytest.mark.parametrize("size", [1, 4, 1021])
@pytest.mark.parametrize("temperature", [0.7, 1e300])
def test_draws_follow_the_documented_masses(size: int, temperature: float) -> None:
    logits = logits_of("normal", size, 8)
    scale = np.float32(2.0**24 * np.log2(np.e) / temperature if temperature < 1e30 else 0.0)
    masses = mass(logits, scale).astype(object)
    order = np.lexsort((np.arange(size), -logits))
    total = int(masses.sum())
    for position in range(10):
        target, token = _core.uniform_at(5, position) * total, -1
        through = 0
        for token in order:
            through += masses[token]
            if through > target:
                break
        assert sampled(sim(), logits, Sampling(temperature=temperature), 5, position) == token


def test_masses_are_the_documented_ones_to_2_to_the_minus_31() -> None:
    """Of two candidates the second is drawn just while min_p, in its own units, is not above its mass."""
    position = next(place for place in range(10_000) if _core.uniform_at(5, place) > 0.98)
    for distance in np.random.default_rng(2).uniform(0.001, 3, 25).astype(np.float32):
        logits = np.array([0, -distance], np.float32)
        units = int(mass(logits, np.float32(2.0**24 * np.log2(np.e)))[1]) >> 9
        for min_p, expected in ((units, 1), (units + 1, 0)):
            sampling = Sampling(min_p=min_p * 2.0**-31)
            assert on_cpu(logits, sampling, 5, position) == expected
            assert sampled(sim(), logits, sampling, 5, position) == expected


@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf])
@pytest.mark.parametrize("size", [1, 129, 1000])
def test_logits_that_are_no_numbers_give_no_token(value: float, size: int) -> None:
    for place in {0, size // 2, size - 1}:
        logits = logits_of("normal", size, 3)
        logits[place] = value
        assert on_cpu(logits, Sampling()) == -1
        for sampling in FILTERS[:2]:
            assert sampled(sim(), logits, sampling, 0, 0) == -1
        assert greedy(sim(), logits) == -1


@pytest.mark.parametrize("size", [1, 31, 1000])
def test_nothing_allowed_gives_no_token(size: int) -> None:
    logits = np.full(size, -np.inf, np.float32)
    assert on_cpu(logits, Sampling()) == -1
    assert sampled(sim(), logits, Sampling(), 0, 0) == -1
    assert greedy(sim(), logits) == -1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 127, 129, 1000, 40_001])
def test_argmax_is_that_of_the_cpu(kind: str, size: int) -> None:
    logits = logits_of(kind, size, 6)
    assert greedy(sim(), logits) == on_cpu(logits, Sampling.greedy()) == int(np.argmax(logits))


@pytest.mark.parametrize("kind", ["normal", "ties"])
def test_argmax_in_any_order_of_threads(kind: str) -> None:
    for size in (200, 3001):
        logits = logits_of(kind, size, 7)
        for device in [sim(checked=True), *[sim(**options) for options in ORDERS]]:
            assert greedy(device, logits) == int(np.argmax(logits))
    logits = logits_of(kind, VOCABULARY, 7)
    assert greedy(sim(), logits) == int(np.argmax(logits))


@pytest.mark.parametrize(("position", "rows"), [(0, 1), (17, 512), (262_143, 1)])
def test_advance_position(position: int, rows: int) -> None:
    following = np.full(1, -7, np.int32)
    buffers = {0: np.array([position], np.int32), 1: following}
    run(sim(checked=True), "advance_position", buffers, args=pack(rows), threadgroups=(1,), threads=ARGS.kSimdWidth)
    assert following[0] == position + rows
