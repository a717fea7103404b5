"""The native sampler against its NumPy description: penalties, bias, masks, filters and draws."""

import math

import numpy as np
import pytest
from sampling_reference import adjusted_logits, distribution, pack

from lily import Sampling, _core
from lily.errors import BackendError, InvalidArgumentError

SIZE = 997


def sample(logits, sampling, seed=0, position=0, output=(), mask=None, sampler=None):
    sampler = sampler or _core.Sampler()
    return sampler.sample(logits, sampling.to_core(), seed, position, list(output), mask)


def random_logits(seed, size=SIZE):
    return np.random.default_rng(seed).normal(0, 3, size).astype(np.float32)


def random_output(seed, length, size=SIZE):
    return np.random.default_rng(seed).integers(0, size, length).tolist()


PENALTIES = [
    {"presence_penalty": 1.5},
    {"frequency_penalty": 0.4},
    {"repetition_penalty": 1.3},
    {"presence_penalty": -1.0, "frequency_penalty": -0.5, "repetition_penalty": 0.8},
    {"logit_bias": {3: 4.5, 996: -2.0, 17: -math.inf}},
    {"presence_penalty": 2.0, "repetition_penalty": 1.1, "logit_bias": {5: 1.0}},
]


@pytest.mark.parametrize("options", PENALTIES)
@pytest.mark.parametrize("length", [0, 1, 63, 400])
def test_greedy_takes_the_best_adjusted_token(options, length):
    for seed in range(40):
        logits, output = random_logits(seed), random_output(seed, length, 60)
        logits[:60] += 4  # so that what is penalised would be chosen
        expected = int(np.argmax(adjusted_logits(logits, output, **options)))
        assert sample(logits, Sampling(temperature=0.0, **options), output=output) == expected


@pytest.mark.parametrize(
    "filters",
    [
        {"temperature": 1.0},
        {"temperature": 0.7, "top_k": 20, "top_p": 0.8},
        {"temperature": 1.3, "top_p": 0.5},
        {"temperature": 1.0, "min_p": 0.2},
        {"temperature": 2.0, "top_k": 7, "min_p": 0.05, "top_p": 0.9},
    ],
)
@pytest.mark.parametrize("options", [{}, *PENALTIES])
def test_draws_follow_the_inverse_of_the_cumulated_distribution(filters, options):
    logits, output = random_logits(11, 41), random_output(12, 90, 41)
    options = {**options, **({"logit_bias": {3: 1.5, 40: -math.inf}} if "logit_bias" in options else {})}
    allowed = np.random.default_rng(13).random(41) < 0.8
    adjusted = adjusted_logits(logits, output, allowed=allowed, **options)
    probabilities = distribution(adjusted, **filters)
    order = np.lexsort((np.arange(41), -adjusted))
    borders = np.cumsum(probabilities[order])
    sampling, sampler = Sampling(**filters, **options), _core.Sampler()
    for position in range(500):
        draw = _core.uniform_at(7, position)
        if np.abs(borders - draw).min() < 1e-5:
            continue  # float32 and float64 may disagree on the border itself
        expected = int(order[np.searchsorted(borders, draw, side="right")])
        token = sample(logits, sampling, seed=7, position=position, output=output, mask=pack(allowed), sampler=sampler)
        assert token == expected
        assert probabilities[token] > 0


def test_same_seed_gives_the_same_draws_in_any_order():
    logits, sampling = random_logits(1), Sampling(temperature=2.0)
    forwards = [sample(logits, sampling, seed=3, position=position) for position in range(60)]
    backwards = [sample(logits, sampling, seed=3, position=position) for position in reversed(range(60))]
    assert forwards == backwards[::-1]
    assert forwards != [sample(logits, sampling, seed=4, position=position) for position in range(60)]


def test_penalty_reaches_over_the_whole_output():
    logits = np.zeros(SIZE, dtype=np.float32)
    logits[[5, 9]] = 2.0, 1.5
    for distance in (1, 45, 5000):
        output = [5] + [700] * (distance - 1)
        assert sample(logits, Sampling(temperature=0.0, presence_penalty=1.0), output=output) == 9
        assert sample(logits, Sampling(temperature=0.0, repetition_penalty=2.0), output=output) == 9


def test_presence_and_repetition_count_a_token_once_but_frequency_each_time():
    logits = np.zeros(SIZE, dtype=np.float32)
    logits[[5, 9]] = 2.0, 1.5
    often = [5] * 50
    assert sample(logits, Sampling(temperature=0.0, presence_penalty=0.4), output=often) == 5
    assert sample(logits, Sampling(temperature=0.0, repetition_penalty=1.2), output=often) == 5
    assert sample(logits, Sampling(temperature=0.0, frequency_penalty=0.4), output=[5]) == 5
    assert sample(logits, Sampling(temperature=0.0, frequency_penalty=0.4), output=often) == 9


def test_one_sampler_serves_growing_and_other_outputs():
    sampler, sampling = _core.Sampler(), Sampling(temperature=0.0, frequency_penalty=0.5)
    logits = random_logits(2)
    outputs = [[4, 4, 8], [4, 4, 8, 4], [4, 4, 8, 4, 9, 9], [9], [], [4, 4], [4, 8, 4]]
    for output in outputs:
        logits[[4, 8, 9]] = 12.0, 11.9, 11.8
        expected = int(np.argmax(adjusted_logits(logits, output, frequency_penalty=0.5)))
        assert sample(logits, sampling, output=output, sampler=sampler) == expected
    short = logits[:10]
    assert sample(short, sampling, output=[4, 900], sampler=sampler) == int(
        np.argmax(adjusted_logits(short, [4], frequency_penalty=0.5))
    )


@pytest.mark.parametrize("size", [1, 31, 32, 33, 64, 997])
def test_mask_allows_what_it_says(size):
    logits = random_logits(size, size)
    for seed in range(20):
        allowed = np.random.default_rng(seed).random(size) < 0.1
        allowed[seed % size] = True
        token = sample(logits, Sampling(temperature=3.0), seed=seed, mask=pack(allowed))
        assert allowed[token]
        assert sample(logits, Sampling.greedy(), mask=pack(allowed)) == int(
            np.argmax(np.where(allowed, logits, -np.inf))
        )


def test_ids_beyond_the_mask_are_not_allowed():
    logits = random_logits(3)
    logits[900] = 99.0
    mask = np.full(2, 0xFFFFFFFF, dtype=np.uint32)
    assert sample(logits, Sampling.greedy(), mask=mask) == int(np.argmax(logits[:64]))


def test_nothing_allowed_is_an_error():
    logits = random_logits(4)
    with pytest.raises(InvalidArgumentError, match="allow no token"):
        sample(logits, Sampling(), mask=np.zeros(32, dtype=np.uint32))
    with pytest.raises(InvalidArgumentError, match="allow no token"):
        sample(logits[:2], Sampling(logit_bias={0: -math.inf, 1: -math.inf}))


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_logits_that_are_not_numbers_are_refused(wrong):
    logits = random_logits(5)
    logits[17] = wrong
    with pytest.raises(BackendError, match="not finite"):
        sample(logits, Sampling(presence_penalty=1.0), output=[17])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("presence_penalty", math.nan),
        ("frequency_penalty", math.inf),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", -1.0),
        ("logit_bias", {3: math.inf}),
        ("logit_bias", {3: math.nan}),
        ("logit_bias", {-3: 1.0}),
        ("logit_bias", {1 << 40: 1.0}),
        ("logit_bias", {"a": 1.0}),
        ("logit_bias", {3: "much"}),
        ("logit_bias", [3, 1.0]),
    ],
)
def test_fields_out_of_range_are_named(field, value):
    with pytest.raises(InvalidArgumentError, match=field):
        Sampling(**{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 0.0),
        ("temperature", 5e-324),
        ("top_k", 0),
        ("top_k", (1 << 63) - 1),
        ("top_p", 5e-324),
        ("top_p", 1.0),
        ("min_p", 0.0),
        ("min_p", 1.0),
        ("seed", 0),
        ("seed", (1 << 64) - 1),
        ("presence_penalty", -1e300),
        ("repetition_penalty", 5e-324),
        ("logit_bias", {0: -math.inf, (1 << 31) - 1: 3.4e38}),
        ("logit_bias", {}),
    ],
)
def test_fields_at_the_ends_of_their_range_are_taken(field, value):
    sampling = Sampling(**{field: value})
    assert getattr(sampling, field) == value
    logits = np.array([1.0, 0.5, -1.0], np.float32)
    assert 0 <= sample(logits, sampling, seed=sampling.seed or 0) < 3


def test_ids_just_outside_the_range_of_tokens_have_no_bias():
    for token in (-1, 1 << 31):
        with pytest.raises(InvalidArgumentError, match="logit_bias"):
            Sampling(logit_bias={token: 1.0})


def test_presence_penalty_that_is_no_number_is_refused():
    with pytest.raises(InvalidArgumentError, match="penalties must be numbers"):
        Sampling(presence_penalty="1")


def test_bias_is_a_copy_and_values_stay_comparable():
    bias = {3: 1}
    sampling = Sampling(logit_bias=bias)
    bias[4] = 1
    assert sampling.logit_bias == {3: 1.0}
    assert sampling == Sampling(logit_bias={3: 1.0})
    assert hash(sampling) == hash(Sampling(logit_bias={3: 1.0}))


def test_profiles_are_those_of_the_model_card():
    fields = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "repetition_penalty")
    table = {
        "thinking": (1.0, 0.95, 20, 0, 1.5, 1.0),
        "coding": (0.6, 0.95, 20, 0, 0, 1.0),
        "instruct": (0.7, 0.8, 20, 0, 1.5, 1.0),
        "reasoning": (1.0, 1.0, 40, 0, 2.0, 1.0),
    }
    for name, expected in table.items():
        assert tuple(getattr(Sampling.profile(name), field) for field in fields) == expected
    with pytest.raises(InvalidArgumentError, match="thinking, coding, instruct, reasoning"):
        Sampling.profile("fast")


@pytest.mark.parametrize("spread", [0.01, 1.0, 4.0])
@pytest.mark.parametrize(
    "filters",
    [
        {"temperature": 1.0},
        {"temperature": 1.0, "top_p": 0.95},
        {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
        {"temperature": 1.0, "top_k": 900},
        {"temperature": 1.0, "min_p": 0.05},
        {"temperature": 1.2, "top_p": 0.999, "min_p": 0.0001},
    ],
)
def test_large_vocabularies_whether_few_or_all_tokens_decide(spread, filters):
    size = 20011
    logits = np.random.default_rng(21).normal(0, spread, size).astype(np.float32)
    logits[::7] = logits[3]  # ties
    allowed = np.random.default_rng(22).random(size) < 0.97
    for mask in (None, allowed):
        adjusted = adjusted_logits(logits, allowed=mask)
        probabilities = distribution(adjusted, **filters)
        order = np.lexsort((np.arange(size), -adjusted))
        borders = np.cumsum(probabilities[order])
        sampler, sampling = _core.Sampler(), Sampling(**filters)
        for position in range(20):
            token = sample(logits, sampling, 9, position, mask=None if mask is None else pack(mask), sampler=sampler)
            rank = int(np.flatnonzero(order == token)[0])
            draw = _core.uniform_at(9, position)
            assert probabilities[token] > 0
            assert borders[rank] > draw - 1e-9
            assert borders[rank] - probabilities[token] <= draw + 1e-9


@pytest.mark.parametrize("top_k", [0, 2])
def test_of_two_equal_logits_the_first_reaches_half_of_top_p(top_k):
    sampling = Sampling(top_p=0.5, top_k=top_k)
    logits = np.array([5, 5], np.float32)
    assert {sample(logits, sampling, seed=3, position=position) for position in range(60)} == {0}


@pytest.mark.parametrize("top_k", [0, 3])
def test_tied_maxima_survive_min_p_of_one(top_k):
    logits = np.array([1, 4, 4, 0, 4], np.float32)
    sampling = Sampling(min_p=1.0, top_k=top_k)
    assert {sample(logits, sampling, seed=3, position=position) for position in range(90)} == {1, 2, 4}


@pytest.mark.parametrize(("size", "top_k"), [(8192, 20), (20_000, 3), (997, 20)])
def test_of_ties_at_the_cut_the_first_ids_stay(size, top_k):
    """Large vocabularies keep their best in a heap; which of equal logits it keeps must not depend on that."""
    sampling = Sampling(top_k=top_k)
    draws = {sample(np.zeros(size, np.float32), sampling, seed=5, position=position) for position in range(400)}
    assert draws == set(range(top_k))
    logits = np.zeros(size, np.float32)
    logits[-1] = 1e-3  # above all of them, and the last that is met
    draws = {sample(logits, sampling, seed=6, position=position) for position in range(400)}
    assert draws == {*range(top_k - 1), size - 1}
