"""What the core refuses by itself, whoever hands it over: the readers in front of it would refuse it, too."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lily
from engine_helpers import VOCAB, random_ids
from lily import _core
from lily.checkpoint import CheckpointSource, MatrixSource, TensorSlice, VectorSource, read_checkpoint
from lily.errors import CheckpointError, ConfigError, ContextOverflowError, InvalidArgumentError, NonFiniteError
from lily.model.native import native_config, native_source

# -- configs


@pytest.mark.parametrize(
    ("field", "wrong", "words"),
    [
        *[
            (name, 0, f"{name} must be positive")
            for name in (
                "hidden_size",
                "vocab_size",
                "max_position_embeddings",
                "num_attention_heads",
                "num_key_value_heads",
                "head_dim",
                "linear_num_key_heads",
                "linear_num_value_heads",
                "linear_key_head_dim",
                "linear_value_head_dim",
                "linear_conv_kernel_dim",
                "num_experts",
                "num_experts_per_tok",
                "moe_intermediate_size",
                "shared_expert_intermediate_size",
            )
        ],
        ("layer_types", [], "no layers"),
        ("num_key_value_heads", 4, "a multiple of num_key_value_heads"),
        ("linear_num_key_heads", 4, "a multiple of linear_num_key_heads"),
        ("num_experts_per_tok", 12, "num_experts_per_tok exceeds num_experts"),
        ("rotary_dim", 7, "must be even"),
        ("rotary_dim", 34, "at most head_dim"),
        ("rotary_dim", -2, "must be even and at most"),
        ("rope_theta", 0.0, "rope_theta must be a positive number"),
        ("rope_theta", float("inf"), "rope_theta"),
        ("rms_norm_eps", -1e-6, "rms_norm_eps must be a number of at least 0"),
        ("rms_norm_eps", float("nan"), "rms_norm_eps"),
    ],
)
def test_dimensions_that_do_not_fit(checkpoint: Path, field: str, wrong: Any, words: str) -> None:
    config = native_config(read_checkpoint(checkpoint).config)
    config.validate()
    setattr(config, field, wrong)
    with pytest.raises(ConfigError, match=words):
        config.validate()


@pytest.mark.parametrize(
    ("field", "value"), [("num_experts_per_tok", 11), ("rotary_dim", 32), ("rotary_dim", 0), ("rms_norm_eps", 0.0)]
)
def test_dimensions_at_their_limits(checkpoint: Path, field: str, value: Any) -> None:
    config = native_config(read_checkpoint(checkpoint).config)
    setattr(config, field, value)
    config.validate()


# -- places of weights


def load(checkpoint: Path, change: Callable[[CheckpointSource], CheckpointSource]) -> _core.Model:
    read = read_checkpoint(checkpoint)
    options = _core.EngineOptions()
    options.threads = 1
    return _core.Model(native_config(read.config), native_source(change(read.source)), options)


def with_matrix(name: str, change: Callable[[MatrixSource], MatrixSource]) -> Callable[..., CheckpointSource]:
    return lambda source: dataclasses.replace(
        source, matrices=tuple(change(one) if one.name == name else one for one in source.matrices)
    )


def with_vector(name: str, change: Callable[[VectorSource], VectorSource]) -> Callable[..., CheckpointSource]:
    return lambda source: dataclasses.replace(
        source, vectors=tuple(change(one) if one.name == name else one for one in source.vectors)
    )


def moved(part: str, place: Callable[[TensorSlice, int], TensorSlice]) -> Callable[..., CheckpointSource]:
    """The embedding with one of its tensors elsewhere; `place` also gets the size of the file."""

    def change(source: CheckpointSource) -> CheckpointSource:
        def move(matrix: MatrixSource) -> MatrixSource:
            only = matrix.parts[0]
            tensor = getattr(only, part)
            changed = dataclasses.replace(only, **{part: place(tensor, source.identities[tensor.file].size)})
            return dataclasses.replace(matrix, parts=(changed,))

        return with_matrix("embed_tokens", move)(source)

    return change


@pytest.mark.parametrize("part", ["weight", "scales", "biases"])
@pytest.mark.parametrize("beyond", ["by one byte", "at the end", "far behind", "around"])
def test_tensors_outside_their_file(checkpoint: Path, part: str, beyond: str) -> None:
    def place(tensor: TensorSlice, size: int) -> TensorSlice:
        matrix = next(one for one in read_checkpoint(checkpoint).source.matrices if one.name == "embed_tokens")
        needed = matrix.weight_bytes if part == "weight" else matrix.scale_bytes
        last = size - needed
        offset = {"by one byte": last + 1, "at the end": size, "far behind": 1 << 62, "around": (1 << 64) - needed}
        assert load(checkpoint, moved(part, lambda tensor, _: dataclasses.replace(tensor, offset=last)))
        return dataclasses.replace(tensor, offset=offset[beyond])

    with pytest.raises(CheckpointError, match="lie outside the file"):
        load(checkpoint, moved(part, place))


@pytest.mark.parametrize("file", [-1, 2, 1 << 30])
def test_files_that_are_not_there(checkpoint: Path, file: int) -> None:
    with pytest.raises(CheckpointError, match="names a file that does not exist"):
        load(checkpoint, moved("weight", lambda tensor, _: dataclasses.replace(tensor, file=file)))
    with pytest.raises(CheckpointError, match="names a file that does not exist"):
        load(checkpoint, with_vector("norm", lambda vector: dataclasses.replace(vector, file=file)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (with_matrix("lm_head", lambda one: dataclasses.replace(one, rows=VOCAB - 1)), r"lm_head has shape"),
        (with_matrix("lm_head", lambda one: dataclasses.replace(one, columns=64)), r"lm_head has shape"),
        (with_matrix("lm_head", lambda one: dataclasses.replace(one, group_size=48)), "group size 48"),
        (with_matrix("lm_head", lambda one: dataclasses.replace(one, group_size=64)), "not a multiple of its group"),
        (with_matrix("lm_head", lambda one: dataclasses.replace(one, name="other")), "lm_head is missing"),
        (with_matrix("lm_head", lambda one: dataclasses.replace(one, parts=())), "holds 0 matrices, expected 1"),
        (with_vector("norm", lambda one: dataclasses.replace(one, size=95)), "norm has 95 elements, expected 96"),
        (with_vector("norm", lambda one: dataclasses.replace(one, name="other")), "norm is missing"),
        (with_vector("norm", lambda one: dataclasses.replace(one, offset=1 << 50)), "lie outside the file"),
        (lambda source: dataclasses.replace(source, identities=source.identities[:1]), "different numbers"),
    ],
)
def test_weights_that_are_not_the_model_s(checkpoint: Path, change: Callable[..., Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        load(checkpoint, change)


# -- states


@pytest.fixture
def parts(model: lily.Model) -> tuple[Any, list[Any], Any, Any]:
    """A builder that lacks its tensors, the tensors, tokens and logits."""
    with model.prefill(random_ids(9)) as session:
        whole = session.snapshot().core
    builder = _core.SnapshotBuilder(model.core, 9)
    tensors = [whole.export_tensor(index) for index in range(len(builder.tensors()))]
    return builder, tensors, whole.tokens, whole.logits


def import_all(builder: Any, tensors: list[Any]) -> Any:
    for index, values in enumerate(tensors):
        builder.import_tensor(index, values)
    return builder


@pytest.mark.parametrize("pending", [None, 0, VOCAB - 1])
def test_a_state_is_rebuilt(model: lily.Model, parts: Any, pending: int | None) -> None:
    builder, tensors, tokens, logits = parts
    snapshot = import_all(builder, tensors).build(tokens, pending, logits)
    assert (snapshot.position, snapshot.pending) == (9 if pending is None else 10, pending)
    with model.session() as session, model.prefill(random_ids(9)) as other:
        snapshot.restore_into(session.core)
        for given in [] if pending is None else [pending]:
            other.decode(given)
        assert np.array_equal(session.decode(5), other.decode(5))


@pytest.mark.parametrize(
    "change",
    [
        lambda tokens, pending, logits: (tokens[:-1], pending, logits),
        lambda tokens, pending, logits: (np.append(tokens, tokens[:1]), pending, logits),
        lambda tokens, pending, logits: (np.append(tokens[:-1], np.int32(VOCAB)), pending, logits),
        lambda tokens, pending, logits: (np.append(tokens[:-1], np.int32(-1)), pending, logits),
        lambda tokens, pending, logits: (tokens, VOCAB, logits),
        lambda tokens, pending, logits: (tokens, -1, logits),
        lambda tokens, pending, logits: (tokens, pending, logits[:-1]),
        lambda tokens, pending, logits: (tokens, pending, np.append(logits, logits[:1])),
    ],
)
def test_parts_of_a_state_that_do_not_fit_together(parts: Any, change: Callable[..., Any]) -> None:
    builder, tensors, tokens, logits = parts
    with pytest.raises(InvalidArgumentError, match="are inconsistent"):
        import_all(builder, tensors).build(*change(tokens, None, logits))


def test_a_state_that_lacks_a_tensor_or_has_one_of_another_size(parts: Any) -> None:
    builder, tensors, tokens, logits = parts
    for index, values in enumerate(tensors):
        for wrong in (values[:-1], np.append(values, values[:1])):
            with pytest.raises(InvalidArgumentError, match="wrong size"):
                builder.import_tensor(index, wrong)
    with pytest.raises(InvalidArgumentError, match="wrong size"):
        builder.import_tensor(len(tensors), tensors[0])
    for index, values in enumerate(tensors[:-1]):
        builder.import_tensor(index, values)
    with pytest.raises(InvalidArgumentError, match="are inconsistent"):
        builder.build(tokens, None, logits)


def test_a_state_with_logits_that_are_not_finite(parts: Any) -> None:
    builder, tensors, tokens, logits = parts
    logits = logits.copy()
    logits[-1] = np.inf
    with pytest.raises(NonFiniteError, match="logits of a saved state"):
        import_all(builder, tensors).build(tokens, None, logits)


def test_a_state_that_is_longer_than_the_context(model: lily.Model) -> None:
    _core.SnapshotBuilder(model.core, model.max_context)
    for position in (-1, model.max_context + 1):
        with pytest.raises(ContextOverflowError, match="does not fit"):
            _core.SnapshotBuilder(model.core, position)


# -- values that are not finite

TYPES: dict[str, tuple[type, list[int], int]] = {  # infinities and NaNs, and the largest finite value
    "F32": (np.uint32, [0x7F800000, 0xFF800000, 0x7F800001, 0x7FC00000, 0xFFFFFFFF], 0x7F7FFFFF),
    "BF16": (np.uint16, [0x7F80, 0xFF80, 0x7F81, 0x7FC0, 0xFFFF], 0x7F7F),
    "F16": (np.uint16, [0x7C00, 0xFC00, 0x7C01, 0x7E00, 0xFFFF], 0x7BFF),
}


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("size", [1, 7, 64, 1003])
def test_the_first_value_that_is_not_finite(kind: str, size: int) -> None:
    word, wrong, largest = TYPES[kind]
    values = np.full(size, largest, word)
    values[::2] |= word(1 << 8 * values.itemsize - 1)  # of both signs

    def found() -> int | None:
        return _core.first_non_finite(values.view(np.uint8), kind)

    assert found() is None
    for place in {0, size // 2, size - 1}:
        for bits in wrong:
            before, values[place] = values[place], bits
            assert found() == place
            values[place] = before
    values[size // 3 :] = wrong[0]
    assert found() == size // 3
