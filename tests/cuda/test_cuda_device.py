"""The cuda device itself: memory, passes, graphs, errors. Runs where there is an NVIDIA GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lily import _core
from lily.errors import BackendError, MemoryLimitError

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def device() -> Any:
    """The GPU with the test kernels of the sim device."""
    if not hasattr(_core.device, "CudaDevice"):
        pytest.skip("this build has no cuda device")
    from device_runner import build_cuda, cuda

    try:
        return cuda(str(build_cuda(sorted((HERE.parent / "sim" / "kernels").glob("*.metal")))))
    except BackendError as error:
        pytest.skip(str(error))


def test_private_memory_round_trip(device: Any) -> None:
    rng = np.random.default_rng(1)
    values = rng.integers(0, 256, 5_000_011, dtype=np.uint8)  # several blocks, and a part of one
    buffer = device.allocate(values.size, "test", False)
    buffer.write(0, values.tobytes())
    buffer.write(17, values[:1001].tobytes())
    values[17 : 17 + 1001] = values[:1001].copy()
    assert buffer.read(0, values.size) == values.tobytes()
    assert buffer.read(4_000_001, 333) == values[4_000_001 : 4_000_001 + 333].tobytes()
    buffer.clear()
    assert buffer.read(0, values.size) == bytes(values.size)
    with pytest.raises(BackendError, match="which has 5000011"):
        buffer.read(values.size, 1)


def scale_pass(device: Any, x: Any, y: Any, offsets: Any, count: int, factor: float) -> Any:
    """One dispatch of y = factor x + offsets."""
    from device_runner import pack

    pipeline = device.pipeline("scale_float_1")
    bindings = [(0, x, 0, 4 * count, False), (1, y, 0, 4 * count, True), (3, offsets, 0, 12, False)]
    return _core.device.Dispatch(pipeline, bindings, 2, pack(count, factor), 0, (-(-count // 32), 1, 1), 32)


def test_a_repeated_pass_becomes_a_graph_with_the_same_results(device: Any) -> None:
    """Chains of kernels: later runs go through a graph, then through a changed one; the host writes in between."""
    count = 1000
    rng = np.random.default_rng(2)
    x, middle, y = (device.allocate(4 * count, name) for name in ("x", "middle", "y"))
    offsets = device.allocate(12, "offsets")
    offsets.contents().view(np.float32)[:] = [0.25, -1.0, 3.0]
    pattern = np.resize(np.float32([0.25, -1.0, 3.0]), count)
    for factor in (2.0, 3.0, 5.0, 7.0):
        for _ in range(4):
            values = rng.standard_normal(count).astype(np.float32)
            x.contents().view(np.float32)[:] = values
            stages = [
                [scale_pass(device, x, middle, offsets, count, 2.0)],
                [scale_pass(device, middle, y, offsets, count, factor)],
            ]
            seconds, error = device.run(stages)
            assert error == ""
            assert seconds > 0
            # One rounding each, or a fused one: within an ulp of either.
            expected = (values * np.float32(2) + pattern) * np.float32(factor) + pattern
            np.testing.assert_allclose(y.contents().view(np.float32), expected, rtol=3e-7, atol=3e-7)


def test_wrong_dispatches_are_errors_of_the_pass(device: Any) -> None:
    from device_runner import pack

    x = device.allocate(4096, "x")
    pipeline = device.pipeline("scale_float_1")
    binding = [(slot, x, 0, 4096, slot == 1) for slot in (0, 1, 3)]
    cases = [
        ((binding[:2], 2, pack(8, 1.0), 0, (1, 1, 1), 32), "slot 3 is not bound"),
        ((binding, 2, pack(8), 0, (1, 1, 1), 32), "argument struct of 8 bytes"),
        ((binding, 2, pack(8, 1.0), 0, (1, 1, 1), 64), "the kernel allows"),
        ((binding, 2, pack(8, 1.0), 0, (0, 1, 1), 32), "the grid is empty"),
        ((binding, 2, pack(8, 1.0), 64, (1, 1, 1), 32), "takes no threadgroup memory"),
        (([(0, x, 4000, 4096, False), *binding[1:]], 2, pack(8, 1.0), 0, (1, 1, 1), 32), "which has only 4096"),
    ]
    for arguments, message in cases:
        _, error = device.run([[_core.device.Dispatch(pipeline, *arguments)]])
        assert message in error
        assert "scale_float_1" in error


def test_memory_that_is_not_there_is_refused(device: Any) -> None:
    with pytest.raises(MemoryLimitError, match=r"no room on the .* for the buffer 'huge' of 1000000000000 bytes"):
        device.allocate(10**12, "huge", False)
    before = device.allocated_bytes
    buffer = device.allocate(1 << 20, "freed", False)
    assert device.allocated_bytes == before + (1 << 20)
    del buffer
    assert device.allocated_bytes == before
