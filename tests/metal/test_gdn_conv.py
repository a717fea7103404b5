"""The convolution of Gated DeltaNet with its norms and gates, against float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from gdn_inputs import SENTINEL, Shape, random_bfloat16, sentinels
from numpy.typing import NDArray

from device_runner import from_bfloat16, run, sim
from lily_args import ARGS
from reference.blocks import causal_convolution, l2_norm, sigmoid, silu, softplus

SHAPES = [
    Shape(1, 1, 1, 32, 20),
    Shape(1, 2, 4, 128, 128),
    Shape(2, 1, 3, 64, 37),
    Shape(3, 2, 2, 256, 300),
    Shape(17, 3, 6, 96, 33),
    Shape(9, 1, 2, 32, 8, kernel_size=2),
    Shape(4, 1, 2, 160, 8, kernel_size=6),
]
OUTPUTS = ("query", "key", "value", "decay", "beta", "conv_state")
every_kernel = pytest.mark.parametrize("kernel", ["gdn_conv", "gdn_conv_bf16"])


@dataclass
class Inputs:
    shape: Shape
    qkv: NDArray[Any]  # f32 or bf16 [tokens, conv_dim]
    a: NDArray[Any]  # f32 [tokens, value_heads]
    b: NDArray[Any]
    taps: NDArray[Any]  # f32 [conv_dim, kernel_size]
    decay_rate: NDArray[Any]  # f32 [value_heads]
    dt_bias: NDArray[Any]
    conv_state: NDArray[Any]  # f32 [kernel_size - 1, conv_dim]

    @classmethod
    def random(cls, shape: Shape, kernel: str, seed: int) -> Inputs:
        random = np.random.default_rng(seed)

        def normal(*size: int) -> NDArray[Any]:
            return random.standard_normal(size, np.float32)

        bits = random_bfloat16(random, shape.tokens, shape.conv_dim)
        gates = (shape.tokens, shape.value_heads)
        return cls(
            shape,
            bits if kernel == "gdn_conv_bf16" else normal(shape.tokens, shape.conv_dim),
            5 * normal(*gates),
            5 * normal(*gates),
            normal(shape.conv_dim, shape.kernel_size),
            np.exp(normal(shape.value_heads)),
            normal(shape.value_heads),
            normal(shape.kernel_size - 1, shape.conv_dim),
        )

    @property
    def qkv_values(self) -> NDArray[Any]:
        return from_bfloat16(self.qkv) if self.qkv.dtype == np.uint16 else self.qkv

    def reference(self) -> dict[str, NDArray[Any]]:
        s = self.shape
        arrays = (self.qkv_values, self.a, self.b, self.taps, self.decay_rate, self.dt_bias, self.conv_state)
        qkv, a, b, taps, decay_rate, dt_bias, previous = (array.astype(np.float64) for array in arrays)
        mixed, state = causal_convolution(qkv, taps, previous)
        query, key, value = np.split(silu(mixed), [s.key_heads * s.key_dim, 2 * s.key_heads * s.key_dim], axis=-1)
        heads = (s.tokens, s.key_heads, s.key_dim)
        return {
            "query": l2_norm(query.reshape(heads)) / np.sqrt(s.key_dim),
            "key": l2_norm(key.reshape(heads)),
            "value": value.reshape(s.tokens, s.value_heads, s.value_dim),
            "decay": np.exp(-decay_rate * softplus(a + dt_bias)),
            "beta": sigmoid(b),
            "conv_state": state,
        }


def convolve(device: Any, kernel: str, inputs: Inputs) -> dict[str, NDArray[Any]]:
    """The outputs as the kernel stores them, bf16 as bits."""
    s = inputs.shape
    unwritten = int(SENTINEL.view(np.uint32) >> 16)
    outputs = {
        "query": np.full((s.tokens, s.key_heads, s.key_dim), unwritten, np.uint16),
        "key": np.full((s.tokens, s.key_heads, s.key_dim), unwritten, np.uint16),
        "value": np.full((s.tokens, s.value_heads, s.value_dim), unwritten, np.uint16),
        "decay": sentinels(s.tokens, s.value_heads),
        "beta": sentinels(s.tokens, s.value_heads),
        "conv_state": sentinels(*inputs.conv_state.shape),
    }
    slots = [inputs.qkv, inputs.a, inputs.b, inputs.taps, inputs.decay_rate, inputs.dt_bias, inputs.conv_state]
    slots += [outputs[name] for name in ("conv_state", "query", "key", "value", "decay", "beta")]
    run(
        device,
        kernel,
        dict(enumerate(slots)),
        threadgroups=(2 * s.key_heads + s.value_heads, s.tokens),
        threads=ARGS.kRowThreads,
        args=s.args(),
    )
    return outputs


def assert_near_reference(inputs: Inputs, outputs: dict[str, NDArray[Any]]) -> None:
    expected = inputs.reference()
    # bf16: half a unit in the last place is at most 2^-8 of the value; below it the fp32 sum of up to six products of
    # normal numbers, 8 x 2^-24 of at most 30.
    for name in ("query", "key", "value"):
        result = from_bfloat16(outputs[name])
        assert (np.abs(result - expected[name]) <= 2.0**-8 * np.abs(expected[name]) + 1.5e-5).all(), name
    # fp32: exp and log good to 4 units in the last place; exp also multiplies the error of its argument.
    arguments = 1 + np.abs(np.log(np.maximum(expected["decay"], 1e-300)))
    error = np.abs(outputs["decay"] - expected["decay"])
    assert (error <= 8 * 2.0**-24 * arguments * expected["decay"] + 2.0**-126).all()
    np.testing.assert_allclose(outputs["beta"], expected["beta"], rtol=8 * 2.0**-24)
    np.testing.assert_array_equal(outputs["conv_state"], expected["conv_state"])  # copied, not computed


@every_kernel
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_convolution_norms_and_gates(kernel: str, shape: Shape) -> None:
    inputs = Inputs.random(shape, kernel, seed=shape.conv_dim)
    assert_near_reference(inputs, convolve(sim(), kernel, inputs))


@every_kernel
def test_chunks_give_the_bits_of_the_whole(kernel: str) -> None:
    inputs = Inputs.random(Shape(12, 1, 2, 64, 12), kernel, seed=2)
    whole = convolve(sim(), kernel, inputs)
    state, parts, first = inputs.conv_state, [], 0
    for count in (1, 2, 5, 4):
        s = inputs.shape
        rows = slice(first, first + count)
        part = Inputs(
            Shape(count, s.key_heads, s.value_heads, s.key_dim, s.value_dim),
            *(np.ascontiguousarray(array[rows]) for array in (inputs.qkv, inputs.a, inputs.b)),
            inputs.taps,
            inputs.decay_rate,
            inputs.dt_bias,
            state,
        )
        parts.append(convolve(sim(), kernel, part))
        state, first = parts[-1]["conv_state"], first + count
    assert first == inputs.shape.tokens
    for name in OUTPUTS[:-1]:
        np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), whole[name], name)
    np.testing.assert_array_equal(state, whole["conv_state"])


@every_kernel
def test_nothing_depends_on_the_order_of_threads(kernel: str) -> None:
    inputs = Inputs.random(Shape(3, 2, 4, 160, 37), kernel, seed=3)
    first = convolve(sim(order="forward"), kernel, inputs)
    for device in (sim(order="reverse"), sim(order="random", seed=5)):
        outputs = convolve(device, kernel, inputs)
        for name in OUTPUTS:
            np.testing.assert_array_equal(outputs[name], first[name], name)


@every_kernel
@pytest.mark.parametrize("shape", [Shape(2, 2, 4, 256, 37), Shape(5, 1, 1, 32, 131)], ids=str)
def test_accesses_are_clean(kernel: str, shape: Shape) -> None:
    inputs = Inputs.random(shape, kernel, seed=4)
    assert_near_reference(inputs, convolve(sim(checked=True), kernel, inputs))


@every_kernel
def test_gates_at_the_ends_of_their_range(kernel: str) -> None:
    """Gates far out neither overflow nor lose their precision where 1 + exp(x) rounds to 1."""
    inputs = Inputs.random(Shape(4, 1, 2, 32, 4), kernel, seed=5)
    inputs.a[:] = np.array([[-200, -30], [-17, -5], [20, 90], [1e4, 0]], np.float32)
    inputs.b[:] = inputs.a[::-1] / 4
    outputs = convolve(sim(), kernel, inputs)
    inputs.b = np.maximum(inputs.b, np.float32(-80))  # further down the true value is no normal fp32 number
    assert np.isfinite(outputs["beta"]).all()
    assert_near_reference(inputs, outputs)


@every_kernel
def test_faint_heads_are_normalised_with_epsilon_on_the_sum(kernel: str) -> None:
    """Query and key whose sum of squares is near 1e-6: where epsilon stands decides their length."""
    inputs = Inputs.random(Shape(3, 2, 2, 64, 12), kernel, seed=6)
    inputs.taps *= np.float32(2e-4)
    lengths = np.linalg.norm(inputs.reference()["key"], axis=-1)
    assert ((lengths > 0.2) & (lengths < 0.98)).all()
    assert_near_reference(inputs, convolve(sim(), kernel, inputs))
