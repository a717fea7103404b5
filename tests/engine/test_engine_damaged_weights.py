"""Weights that are not numbers: no crash in any kernel, and an error that says where values first were not finite."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import lily
from engine_helpers import CONFIG, THREADS, random_ids
from lily import _core
from lily.checkpoint import ElementType, read_checkpoint
from lily.errors import NonFiniteError
from synthetic import write_checkpoint

NOT_A_NUMBER = b"\xc0\x7f"  # bfloat16
INFINITE = b"\x80\xff"  # bfloat16, negative


def overwrite_vector(directory: Path, name: str, value: bytes) -> None:
    source = read_checkpoint(directory).source
    vector = next(vector for vector in source.vectors if vector.name == name)
    assert vector.element_type is ElementType.bfloat16
    with Path(source.files[vector.file]).open("r+b") as file:
        file.seek(vector.offset)
        file.write(value * vector.size)


def overwrite_row(directory: Path, name: str, row: int, value: bytes) -> None:
    """One row of a plain matrix."""
    source = read_checkpoint(directory).source
    matrix = next(matrix for matrix in source.matrices if matrix.name == name)
    weight = matrix.parts[0].weight
    with Path(source.files[weight.file]).open("r+b") as file:
        file.seek(weight.offset + 2 * matrix.columns * row)
        file.write(value * matrix.columns)


@pytest.fixture
def damaged(checkpoint: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(checkpoint, tmp_path / "damaged"))


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A checkpoint of bfloat16 matrices, to be damaged."""
    return write_checkpoint(tmp_path / "plain", CONFIG, seed=5, bits=None)


@pytest.fixture
def load() -> Iterator[Callable[..., lily.Model]]:
    loaded: list[lily.Model] = []

    def load_one(directory: Path, **options: object) -> lily.Model:
        loaded.append(lily.Model.load(directory, **{"threads": THREADS, "prefill_chunk": 16, **options}))
        return loaded[-1]

    yield load_one
    for model in loaded:
        model.close()


@pytest.mark.parametrize("isa", _core.available_isas())
@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("norm", "position 39, norm or lm_head"),
        ("layers.1.input_layernorm", "position 0, layers.1.self_attn"),
        ("layers.2.post_attention_layernorm", "position 0, layers.2.mlp"),
        ("layers.1.self_attn.q_norm", "position 0, layers.1.self_attn"),
        ("layers.1.self_attn.k_norm", "position 0, layers.1.self_attn"),
    ],
)
def test_not_a_number(damaged: Path, load, name: str, place: str, isa: str) -> None:
    overwrite_vector(damaged, name, NOT_A_NUMBER)
    model = load(damaged, cpu_isa=isa)
    with pytest.raises(NonFiniteError, match=rf"logits at position 39 are not finite.*: {place}\."):
        model.session().prefill(random_ids(40))


@pytest.mark.parametrize("value", [NOT_A_NUMBER, INFINITE])
@pytest.mark.parametrize("at", [0, 21, 39])
def test_one_token_that_is_not_finite(plain: Path, load, at: int, value: bytes) -> None:
    """The position is that of the token, whichever chunk it is in, and the layer the embedding."""
    overwrite_row(plain, "embed_tokens", 300, value)
    model = load(plain)
    ids = [token % 300 for token in random_ids(40)]
    ids[at] = 300
    place = rf": position {at}, embed_tokens\."
    with model.session() as session, pytest.raises(NonFiniteError, match=place):
        session.prefill(ids)
    with model.session() as session, pytest.raises(NonFiniteError, match=place):
        for token in ids:
            session.decode(token)
    with model.session() as session, pytest.raises(NonFiniteError, match=place):
        session.score([*ids, 1, 2])
    ids[at] = 7
    with model.session() as session:
        assert np.isfinite(session.prefill(ids)).all() and np.isfinite(session.score(ids)).all()


def test_an_infinite_logit_is_noticed(plain: Path, load) -> None:
    """A single one, below all others, that no greedy choice would meet."""
    overwrite_row(plain, "lm_head", 300, INFINITE)
    model = load(plain)
    session = model.session()
    with pytest.raises(NonFiniteError, match=r"position 0, norm or lm_head"):
        session.decode(5)
    with pytest.raises(NonFiniteError, match=r"norm or lm_head"):
        model.session().score([5, 6, 7])


def test_a_session_that_is_not_finite_is_of_no_use_until_reset(plain: Path, load, tmp_path: Path) -> None:
    overwrite_row(plain, "embed_tokens", 300, NOT_A_NUMBER)
    model = load(plain)
    session = model.prefill([1, 2, 3])
    with pytest.raises(NonFiniteError):
        session.decode(300)
    uses = (
        lambda: session.decode(1),
        lambda: next(session.generate(1)),
        session.fork,
        session.snapshot,
        lambda: session.save(tmp_path / "state"),
        lambda: model.cache.insert(session),
    )
    for use in uses:
        with pytest.raises(NonFiniteError, match="position 3, embed_tokens"):
            use()
    assert len(model.cache) == 0 and not (tmp_path / "state").exists()
    session.reset()
    assert np.isfinite(session.prefill([1, 2, 3])).all()


@pytest.mark.parametrize("biased", [False, True])
def test_a_generated_token_that_is_not_finite(plain: Path, load, biased: bool) -> None:
    sampling = lily.Sampling(temperature=0.0, logit_bias={300: 1e6} if biased else {})
    ids = random_ids(20, vocab=150)
    with load(plain).prefill(ids) as session:
        first = next(session.generate(1, sampling=sampling, stop_tokens=()))
    assert first not in ids
    overwrite_row(plain, "embed_tokens", first, NOT_A_NUMBER)
    session = load(plain).prefill(ids)
    tokens = session.generate(5, sampling=sampling, stop_tokens=())
    assert next(tokens) == first
    with pytest.raises(NonFiniteError, match="position 20, embed_tokens"):
        next(tokens)


def test_no_prompt_starts_from_a_state_that_is_not_finite(plain: Path, load) -> None:
    """Neither at its end nor where it was interrupted, with and without other prompts in the cache."""
    overwrite_row(plain, "embed_tokens", 300, NOT_A_NUMBER)
    model = load(plain)
    healthy = [token % 300 for token in random_ids(48)]
    for _ in range(2):
        with pytest.raises(NonFiniteError, match="position 48, embed_tokens"):
            model.cached_session([*healthy, 300, *healthy], snapshot_at=[48])

    def interrupt(done: int, total: int) -> None:
        if done >= 96:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.cached_session([*healthy[:40], 300, *healthy, *healthy], progress=interrupt)
    session = model.cached_session([*healthy[:40], 5])
    assert np.isfinite(session.logits).all()
    assert model.cache.explain([*healthy[:40], 300, *healthy]).cached_tokens <= 40


def poisoned_snapshot(model: lily.Model, ids: list[int], tensor: str) -> _core.Snapshot:
    """A state with one value that is not a number, and logits that are."""
    with model.prefill(ids) as session:
        whole = session.snapshot().core
    builder = _core.SnapshotBuilder(model.core, len(ids))
    for index, (name, _, _) in enumerate(builder.tensors()):
        values = whole.export_tensor(index).copy()
        if name == tensor:
            values[-4:] = 255
        builder.import_tensor(index, values)
    return builder.build(whole.tokens, None, whole.logits)


@pytest.mark.parametrize(
    ("tensor", "place"),
    [
        ("layers.2.recurrent_state", r"layers\.2\.recurrent_state"),
        ("layers.0.conv_state", r"layers\.0\.conv_state"),
        ("layers.1.values", r"position 19, layers\.1\.values"),
    ],
)
def test_a_state_that_is_not_finite(checkpoint: Path, load, tmp_path: Path, tensor: str, place: str) -> None:
    model = load(checkpoint)
    ids = random_ids(20)
    snapshot = poisoned_snapshot(model, ids, tensor)
    session = model.session()
    snapshot.restore_into(session.core)
    with pytest.raises(NonFiniteError, match=place):
        session.save(tmp_path / "state")
    assert list(tmp_path.iterdir()) == []
    model.cache.insert(session)
    with pytest.raises(NonFiniteError, match=place.replace("conv_state", "")):  # the window has moved on
        session.decode(1)
    # A prompt that would start there is computed from its beginning, and the state is forgotten.
    fresh = model.cached_session([*ids, 4, 5])
    with model.prefill([*ids, 4, 5]) as cold:
        np.testing.assert_array_equal(fresh.logits, cold.logits)
    assert model.cache.explain([*ids, 9]).cached_tokens == 0
