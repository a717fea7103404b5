"""The decode step of Gated DeltaNet and its gated norm, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gdn_inputs import EPSILON, KEY_DIM_CONSTANT, SENTINEL, Recurrence, Shape, random_bfloat16, sentinels
from numpy.typing import NDArray

from device_runner import from_bfloat16, run, sim, to_bfloat16
from lily_args import ARGS
from reference.blocks import rms_norm, silu

UNWRITTEN = int(SENTINEL.view(np.uint32) >> 16)
STEP_SHAPES = [
    Shape(1, 1, 1, 32, 5),
    Shape(1, 2, 4, 128, 128),
    Shape(1, 1, 3, 64, 130),
    Shape(1, 2, 2, 256, 61),
    Shape(1, 3, 6, 96, 300),
    Shape(1, 1, 1, 32, 1024),
]
NORM_SHAPES = [
    Shape(1, 1, 1, 32, 37),
    Shape(3, 1, 4, 32, 128),
    Shape(2, 1, 3, 32, 20),
    Shape(5, 1, 2, 32, 301),
    Shape(2, 1, 2, 32, 2),
]
every_norm = pytest.mark.parametrize("kernel", ["gdn_norm", "gdn_norm_f32z"])


def gated_norm(x: NDArray[Any], z: NDArray[Any], weight: NDArray[Any]) -> NDArray[Any]:
    z_values = from_bfloat16(z) if z.dtype == np.uint16 else z
    return rms_norm(x.astype(np.float64), weight.astype(np.float64), EPSILON) * silu(z_values.astype(np.float64))


def assert_norm_near(out: NDArray[Any], expected: NDArray[Any], error: NDArray[Any] | float = 0.0) -> None:
    # bf16: half a unit in the last place is at most 2^-8 of the value. 16 x 2^-24 of it: the fp32 operations before.
    assert (np.abs(from_bfloat16(out) - expected) <= (2.0**-8 + 2.0**-20) * np.abs(expected) + error).all()


class StepInputs:
    def __init__(self, shape: Shape, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.recurrence = Recurrence(shape, seed)
        self.z = random.standard_normal((shape.value_heads, shape.value_dim), np.float32)
        self.weight = 1 + 0.3 * random.standard_normal(shape.value_dim, np.float32)

    def run(self, device: Any) -> tuple[NDArray[Any], NDArray[Any]]:
        """Output, bf16 bits [value_heads, value_dim], and next state."""
        shape = self.recurrence.shape
        out = np.full((shape.value_heads, shape.value_dim), UNWRITTEN, np.uint16)
        state = sentinels(*self.recurrence.state.shape)
        run(
            device,
            "gdn_step",
            {**self.recurrence.buffers(), 6: state, 7: self.z, 8: self.weight, 9: out},
            threadgroups=(shape.value_heads,),
            threads=ARGS.kStepThreads,
            args=shape.args(),
            constants={KEY_DIM_CONSTANT: shape.key_dim},
        )
        return out, state

    def assert_near_reference(
        self, out: NDArray[Any], state: NDArray[Any], bounds: NDArray[Any], read: NDArray[Any], next_state: NDArray[Any]
    ) -> None:
        """`read` and `next_state` are the reference's, `bounds` the error of each head's state and read."""
        assert (np.abs(state - next_state).max((1, 2)) <= bounds).all()
        # The norm divides the error of the read by its root mean square; once in the element, once in the square.
        length = np.sqrt(np.mean(read**2, -1, keepdims=True) + EPSILON)
        scale = np.abs(self.weight * silu(self.z)) / length
        factor = 1 + np.abs(read) / length
        assert_norm_near(out, gated_norm(read, self.z, self.weight), bounds[:, None] * scale * factor)


@pytest.mark.parametrize("shape", STEP_SHAPES, ids=str)
def test_step_is_a_scan_of_one_token_and_the_norm(shape: Shape) -> None:
    inputs = StepInputs(shape, seed=shape.value_dim)
    out, state = inputs.run(sim())
    read, next_state = inputs.recurrence.reference()
    inputs.assert_near_reference(out, state, inputs.recurrence.bounds(), read[0], next_state)


@pytest.mark.parametrize("scale", [0.0, 1e-4, 1e-3, 1e4])
@pytest.mark.parametrize("shape", [Shape(1, 1, 2, 64, 61), Shape(1, 2, 4, 128, 128)], ids=str)
def test_reads_of_any_magnitude(shape: Shape, scale: float) -> None:
    """The norm's eps is nothing beside large reads, much beside small ones, and all there is beside zeros."""
    inputs = StepInputs(shape, seed=8)
    recurrence = inputs.recurrence
    recurrence.state *= np.float32(scale)
    recurrence.value = to_bfloat16(from_bfloat16(recurrence.value) * np.float32(scale))
    out, state = inputs.run(sim())
    read, next_state = recurrence.reference()
    inputs.assert_near_reference(out, state, recurrence.bounds(), read[0], next_state)


def test_steps_follow_the_recurrence() -> None:
    tokens = 25
    sequence = Recurrence(Shape(tokens, 2, 4, 64, 70), seed=3)
    reads, _ = sequence.reference()
    state = sequence.state
    for token in range(tokens):
        inputs = StepInputs(Shape(1, 2, 4, 64, 70), seed=token)
        inputs.recurrence = sequence.part(token, 1, state)
        out, state = inputs.run(sim())
        until_now = sequence.part(0, token + 1, sequence.state)
        inputs.assert_near_reference(out, state, until_now.bounds(), reads[token], until_now.reference()[1])


def test_step_does_not_depend_on_the_order_of_threads() -> None:
    inputs = StepInputs(Shape(1, 1, 2, 96, 133), seed=4)
    first = inputs.run(sim(order="forward"))
    for device in (sim(order="reverse"), sim(order="random", seed=9)):
        for expected, result in zip(first, inputs.run(device), strict=True):
            np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("shape", [Shape(1, 1, 2, 128, 133), Shape(1, 1, 1, 256, 7)], ids=str)
def test_accesses_of_the_step_are_clean(shape: Shape) -> None:
    inputs = StepInputs(shape, seed=5)
    out, state = inputs.run(sim(checked=True))
    read, next_state = inputs.recurrence.reference()
    inputs.assert_near_reference(out, state, inputs.recurrence.bounds(), read[0], next_state)


def norm(
    device: Any, kernel: str, shape: Shape, seed: int, scale: float | None = None
) -> tuple[NDArray[Any], NDArray[Any]]:
    """The kernel's output and the reference's; without a `scale` each head has one of its own."""
    random = np.random.default_rng(seed)
    size = (shape.tokens, shape.value_heads, shape.value_dim)
    scales = np.exp(3 * random.standard_normal((*size[:2], 1), np.float32)) if scale is None else np.float32(scale)
    x = random.standard_normal(size, np.float32) * scales
    z = 3 * random.standard_normal(size, np.float32) if kernel == "gdn_norm_f32z" else random_bfloat16(random, *size)
    weight = 1 + 0.3 * random.standard_normal(shape.value_dim, np.float32)
    out = np.full(size, UNWRITTEN, np.uint16)
    run(
        device,
        kernel,
        {0: x, 1: z, 2: weight, 3: out},
        threadgroups=(shape.value_heads, shape.tokens),
        threads=ARGS.kSimdWidth,
        args=shape.args(),
    )
    return out, gated_norm(x, z, weight)


@every_norm
@pytest.mark.parametrize("shape", NORM_SHAPES, ids=str)
def test_gated_norm(kernel: str, shape: Shape) -> None:
    assert_norm_near(*norm(sim(), kernel, shape, seed=shape.value_dim))


@every_norm
@pytest.mark.parametrize("scale", [0.0, 1e-8, 1e-4, 1e-3, 1e4])
@pytest.mark.parametrize("shape", [Shape(2, 1, 2, 32, 20), Shape(2, 1, 3, 32, 37)], ids=str)
def test_heads_of_any_magnitude(kernel: str, shape: Shape, scale: float) -> None:
    """The norm's eps is nothing beside large heads, much beside small ones, and all there is beside zeros."""
    assert_norm_near(*norm(sim(), kernel, shape, seed=9, scale=scale))


@every_norm
def test_gated_norm_does_not_depend_on_the_order_of_threads(kernel: str) -> None:
    shape = Shape(3, 1, 2, 32, 133)
    first, _ = norm(sim(order="forward"), kernel, shape, seed=6)
    for device in (sim(order="reverse"), sim(order="random", seed=2)):
        np.testing.assert_array_equal(norm(device, kernel, shape, seed=6)[0], first)


@every_norm
@pytest.mark.parametrize("shape", [Shape(2, 1, 2, 32, 128), Shape(3, 1, 1, 32, 37)], ids=str)
def test_accesses_of_the_gated_norm_are_clean(kernel: str, shape: Shape) -> None:
    assert_norm_near(*norm(sim(checked=True), kernel, shape, seed=7))
