"""The scans of Gated DeltaNet over the tokens of a chunk, against the recurrence in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gdn_inputs import KEY_DIM_CONSTANT, Recurrence, Shape, ceil_divide, sentinels
from numpy.typing import NDArray

from device_runner import run, sim
from lily_args import ARGS

KERNELS = ["gdn_scan", "gdn_scan_blocked"]
BLOCK = ARGS.kScanBlock
SHAPES = [
    Shape(1, 1, 1, 32, 5),
    Shape(1, 2, 4, 128, 12),
    Shape(37, 2, 6, 64, 13),
    Shape(50, 1, 2, 256, 9),
    Shape(16, 3, 3, 96, 8),
    Shape(33, 2, 4, 128, 20),
    Shape(131, 1, 1, 32, 3),
]
RAGGED = Shape(19, 1, 2, 96, 13)

every_kernel = pytest.mark.parametrize("kernel", KERNELS)


def scan(device: Any, kernel: str, inputs: Recurrence) -> list[NDArray[Any]]:
    """Output and next state; for the blocked kernel also the states between blocks."""
    shape = inputs.shape
    out = sentinels(shape.tokens, shape.value_heads, shape.value_dim)
    results = [out, sentinels(*inputs.state.shape)]
    buffers = {**inputs.buffers(), 6: results[1], 7: out}
    if kernel == "gdn_scan_blocked":
        results.append(sentinels(ceil_divide(shape.tokens, BLOCK), *inputs.state.shape))
        buffers[9] = results[2]
    run(
        device,
        kernel,
        buffers,
        threadgroups=(ceil_divide(shape.value_dim, ARGS.kScanColumns), shape.value_heads),
        threads=ARGS.kScanThreads,
        args=shape.args(),
        args_slot=8,
        constants={KEY_DIM_CONSTANT: shape.key_dim},
    )
    return results


def assert_near_reference(inputs: Recurrence, out: NDArray[Any], state: NDArray[Any]) -> None:
    expected_out, expected_state = inputs.reference()
    bounds = inputs.bounds()
    assert (np.abs(out - expected_out).max((0, 2)) <= bounds).all()
    assert (np.abs(state - expected_state).max((1, 2)) <= bounds).all()


@every_kernel
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_scan_is_the_recurrence(kernel: str, shape: Shape) -> None:
    inputs = Recurrence(shape, seed=shape.tokens)
    out, state, *_ = scan(sim(), kernel, inputs)
    assert_near_reference(inputs, out, state)


@every_kernel
def test_chunks_give_the_bits_of_the_whole(kernel: str) -> None:
    inputs = Recurrence(Shape(61, 1, 2, 64, 11), seed=4)
    whole_out, whole_state, *_ = scan(sim(), kernel, inputs)
    state, outs, first = inputs.state, [], 0
    for count in (1, 7, 16, 20, 17):
        out, state, *_ = scan(sim(), kernel, inputs.part(first, count, state))
        outs.append(out)
        first += count
    assert first == inputs.shape.tokens
    np.testing.assert_array_equal(np.concatenate(outs), whole_out)
    np.testing.assert_array_equal(state, whole_state)


@every_kernel
def test_nothing_depends_on_the_order_of_threads(kernel: str) -> None:
    inputs = Recurrence(RAGGED, seed=5)
    first = scan(sim(order="forward"), kernel, inputs)
    for device in (sim(order="reverse"), sim(order="random", seed=11)):
        for expected, result in zip(first, scan(device, kernel, inputs), strict=True):
            np.testing.assert_array_equal(result, expected)


@every_kernel
@pytest.mark.parametrize("shape", [RAGGED, Shape(3, 2, 2, 128, 4), Shape(2, 1, 1, 256, 9)], ids=str)
def test_accesses_are_clean(kernel: str, shape: Shape) -> None:
    inputs = Recurrence(shape, seed=6)
    out, state, *_ = scan(sim(checked=True), kernel, inputs)
    assert_near_reference(inputs, out, state)


@every_kernel
def test_a_gate_at_zero_forgets_everything(kernel: str) -> None:
    inputs = Recurrence(Shape(9, 1, 2, 32, 7), seed=7)
    inputs.decay[4] = 0.0
    out, state, *_ = scan(sim(), kernel, inputs)
    inputs.state = 3 * inputs.state[::-1].copy()
    other_out, other_state, *_ = scan(sim(), kernel, inputs)
    np.testing.assert_array_equal(out[4:], other_out[4:])
    np.testing.assert_array_equal(state, other_state)
    assert (out[:4] != other_out[:4]).mean() > 0.9


def test_blocked_scan_leaves_the_state_after_each_block() -> None:
    inputs = Recurrence(Shape(2 * BLOCK + 5, 1, 2, 64, 6), seed=8)
    _, state, blocks = scan(sim(), "gdn_scan_blocked", inputs)
    for block, count in enumerate((BLOCK, 2 * BLOCK)):
        _, expected, *_ = scan(sim(), "gdn_scan_blocked", inputs.part(0, count, inputs.state))
        np.testing.assert_array_equal(blocks[block], expected)
    np.testing.assert_array_equal(blocks[2], state)
