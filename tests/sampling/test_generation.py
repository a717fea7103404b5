"""Generation objects on the bundled model: logprobs, masks, forced tokens, penalties, limits."""

import numpy as np
import pytest
from sampling_reference import adjusted_logits, pack

from lily import Sampling
from lily.errors import CancelledError, InvalidArgumentError

PROMPT = "Tell me a story about a dog and a cat."


@pytest.fixture
def session(model):
    with model.session(seed=5) as opened:
        opened.prefill(model.render_chat([{"role": "user", "content": PROMPT}]))
        yield opened


def test_generate_gives_the_tokens_of_a_generation(model, session):
    with session.fork(seed=5) as other:
        assert list(session.generate(40)) == [token.id for token in other.generation(40)]


def test_logprobs_are_those_of_the_unmodified_logits(model, session):
    sampling = Sampling(temperature=1.5, presence_penalty=2.0, logit_bias={17: 3.0})
    generation = session.generation(24, sampling=sampling, stop_tokens=(), logprobs=5)
    logits = [session.logits]
    tokens = []
    for token in generation:
        tokens.append(token)
        with session.fork() as fork:
            logits.append(_logits_after(fork))
    assert len(tokens) == 24
    for token, row in zip(tokens, logits[:24], strict=True):
        row = row[: model.sampled_vocab_size].astype(np.float64)
        expected = row - row.max() - np.log(np.exp(row - row.max()).sum())
        best = np.lexsort((np.arange(len(row)), -row))[:5]
        assert token.logprob == pytest.approx(expected[token.id], abs=1e-5)
        assert [id_ for id_, _ in token.top_logprobs] == best.tolist()
        assert [value for _, value in token.top_logprobs] == pytest.approx(expected[best].tolist(), abs=1e-5)


def _logits_after(session):
    # The fork holds the token without having computed it; repeating the sequence in a fresh session does.
    with session.model.session() as fresh:
        return fresh.prefill(session.tokens)


def test_penalties_see_the_output_and_not_the_prompt(model, session):
    prompt = session.position
    sampling = Sampling(temperature=0.0, presence_penalty=1.0, frequency_penalty=0.5, repetition_penalty=1.2)
    tokens = list(session.generate(40, sampling=sampling, stop_tokens=()))
    ids = session.tokens
    options = {"presence_penalty": 1.0, "frequency_penalty": 0.5, "repetition_penalty": 1.2}
    with model.session() as replay:
        logits = replay.prefill(ids[:prompt])
        for at, token in enumerate(tokens):
            row = logits[: model.sampled_vocab_size]
            assert token == int(np.argmax(adjusted_logits(row, tokens[:at], **options)))
            logits = replay.decode(token)


def test_forced_tokens_are_part_of_the_output_and_count_for_penalties(session):
    # A token forced again and again is not chosen afterwards, as its penalty has grown.
    generation = session.generation(50, sampling=Sampling(temperature=0.0, frequency_penalty=100.0), stop_tokens=())
    first = next(generation).id
    assert generation.force([7, 7, 7]) == [7, 7, 7]
    rest = [token.id for token in generation]
    assert generation.tokens == [first, 7, 7, 7, *rest]
    assert len(generation.tokens) == 50
    assert len(set(rest)) == len(rest)
    assert not {first, 7} & set(rest)
    assert session.tokens[-50:] == generation.tokens
    assert generation.finish_reason == "length"


def test_forced_tokens_stop_at_the_limit(session):
    generation = session.generation(3, stop_tokens=())
    assert generation.force([1, 2, 3, 4, 5]) == [1, 2, 3]
    assert list(generation) == []
    assert generation.finish_reason == "length"
    assert generation.force([1]) == []


def test_stop_token_is_reported_and_not_part_of_the_session(model, session):
    generation = session.generation(400, sampling=Sampling.greedy(), logprobs=0)
    count = len(list(generation))
    assert generation.finish_reason == "stop"
    assert generation.stop_token.id in model.stop_tokens
    assert generation.stop_token.logprob <= 0
    assert session.tokens[-count:] == generation.tokens
    assert next(generation, None) is None


def test_mask_holds_for_every_token(model, session):
    allowed = np.zeros(model.sampled_vocab_size, dtype=bool)
    allowed[[11, 500, 501]] = True
    tokens = {
        token.id for token in session.generation(60, sampling=Sampling(temperature=5.0), mask=lambda: pack(allowed))
    }
    assert tokens == {11, 500, 501}


@pytest.mark.parametrize("mask", [np.zeros(3, np.uint32), np.zeros(200, np.int32), np.zeros((1, 200), np.uint32)])
def test_mask_of_another_form_is_refused(session, mask):
    with pytest.raises(InvalidArgumentError, match="mask must be uint32"):
        next(session.generation(mask=lambda: mask))
    assert next(session.generation(1), None) is not None


def test_session_changed_meanwhile(session):
    generation = session.generation(9, stop_tokens=())
    next(generation)
    session.decode(3)
    with pytest.raises(InvalidArgumentError, match="changed"):
        next(generation)


def test_cancel_ends_a_generation_and_leaves_the_session(session):
    generation = session.generation(50, stop_tokens=())
    tokens = [next(generation).id for _ in range(3)]
    session.cancel()
    with pytest.raises(CancelledError):
        next(generation)
    assert session.tokens[-3:] == tokens
    assert len(list(session.generate(4, stop_tokens=()))) == 4


@pytest.mark.parametrize("logprobs", [-1, 1.5, True])
def test_logprobs_must_be_a_count(session, logprobs):
    with pytest.raises(InvalidArgumentError, match="logprobs"):
        session.generation(logprobs=logprobs)


def test_default_sampling_is_that_of_generation_config(model):
    assert model.default_sampling == Sampling(temperature=0.6, top_k=20, top_p=0.95)
