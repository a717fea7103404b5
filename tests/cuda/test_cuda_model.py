"""The bundled model on an NVIDIA GPU. Runs where there is one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import lily
from engine_helpers import assert_parts_give_the_same_bits
from lily.errors import BackendError

PROMPT = np.random.default_rng(71).integers(0, 4000, 203).tolist()


@pytest.fixture(scope="module")
def model() -> Iterator[lily.Model]:
    if "cuda" not in lily.available_backends():
        pytest.skip("no NVIDIA GPU")
    try:
        loaded = lily.Model.load("lily-tiny", backend="cuda", prefix_cache_bytes=0)
    except BackendError as error:
        pytest.skip(str(error))
    with loaded:
        yield loaded


@pytest.mark.parametrize("parts", [(202, 1), (1, 202), (64, 1, 1, 137), (16, 1, 32, 1, 153), (1,) * 5 + (198,)])
def test_parts_of_a_prompt_give_the_same_bits(model: lily.Model, parts: tuple[int, ...]) -> None:
    assert_parts_give_the_same_bits(model, PROMPT, parts)


def test_a_generation_is_what_decoding_its_tokens_gives(model: lily.Model) -> None:
    """Steps that run ahead of the host, in graphs, against steps that it asks for one by one."""
    with model.session() as session:
        session.prefill(PROMPT)
        generated = list(session.generate(40, sampling=lily.Sampling.greedy(), stop_tokens=()))
    with model.session() as session:
        logits = session.prefill(PROMPT)
        for token in generated:
            assert int(np.argmax(logits)) == token
            logits = session.decode(token)
