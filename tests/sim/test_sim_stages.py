"""What the sim device checks of passes: bindings, ranges, hazards inside a stage, order between stages."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from lily import _core, _test_doubles
from lily.errors import BackendError


def copy(x: Any, y: Any, **options: Any) -> Any:
    """A launch of 64 threads in two threadgroups that copies x to y."""
    from device_runner import Launch

    return Launch("copy_values", {0: x, 1: y}, threadgroups=(2,), threads=32, **options)


@pytest.fixture()
def arrays() -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(5)
    return [rng.standard_normal(64).astype(np.float32) for _ in range(4)]


@pytest.mark.parametrize("checked", [False, True])
def test_stages_run_in_order(make_device: Any, arrays: Any, checked: bool) -> None:
    from device_runner import run_stages

    a, b, c, d = arrays
    expected = a.copy()
    run_stages(make_device(checked=checked), [[copy(a, b)], [copy(b, c), copy(a, d)]])
    np.testing.assert_array_equal(c, expected)
    np.testing.assert_array_equal(d, expected)


@pytest.mark.parametrize("checked", [False, True])
def test_a_stage_that_reads_what_it_writes_is_a_hazard(make_device: Any, arrays: Any, checked: bool) -> None:
    from device_runner import KernelError, run_stages

    a, b, c, _ = arrays
    with pytest.raises(KernelError, match=r"hazard in one stage: copy_values writes bytes 0 to 256 of 'buffer 1'"):
        run_stages(make_device(checked=checked), [[copy(a, b), copy(b, c)]])
    with pytest.raises(KernelError, match="hazard"):
        run_stages(make_device(checked=checked), [[copy(a, c), copy(b, c)]])


@pytest.mark.parametrize("options", [{}, {"checked": True}, {"shuffle_stage": True, "seed": 3}])
def test_disjoint_ranges_of_one_buffer_are_no_hazard(make_device: Any, options: Any) -> None:
    x = np.arange(128, dtype=np.float32)
    device = make_device(**options)
    source, target = device.allocate(512, "x"), device.allocate(512, "y")
    source.contents()[:] = x.view(np.uint8)
    target.contents()[:] = 0
    pipeline = device.pipeline("copy_values")
    halves = [
        _core.device.Dispatch(
            pipeline, [(0, source, at, 256, False), (1, target, at, 256, True)], 0, b"", 0, (2, 1, 1), 32
        )
        for at in (0, 256)
    ]
    assert device.run([halves])[1] == ""
    np.testing.assert_array_equal(target.contents().view(np.float32), x)


def test_accesses_outside_the_declared_range_are_errors(make_device: Any, arrays: Any) -> None:
    from device_runner import KernelError, run_stages

    a, b, _, _ = arrays
    message = r"write of bytes 128 to 132 of buffer 'buffer 1' at faults.metal:\d+: not in the range declared"
    with pytest.raises(KernelError, match=message):
        run_stages(make_device(checked=True), [[copy(a, b, ranges={1: (0, 128)})]])
    run_stages(make_device(checked=True, check_declared_ranges=False), [[copy(a, b, ranges={1: (0, 128)})]])
    np.testing.assert_array_equal(b, a)


def test_a_read_outside_the_declared_range_is_an_error(make_device: Any, arrays: Any) -> None:
    from device_runner import KernelError, run_stages

    a, b, _, _ = arrays
    with pytest.raises(
        KernelError, match=r"read of bytes 128 to 132 of buffer 'buffer 0' .* not in the range declared"
    ):
        run_stages(make_device(checked=True), [[copy(a, b, ranges={0: (0, 128)})]])


@pytest.mark.parametrize("order", ["forward", "reverse", "random"])
def test_dispatches_of_a_stage_race_where_their_declared_ranges_hide_it(make_device: Any, order: str) -> None:
    device = make_device(checked=True, check_declared_ranges=False, order=order)
    x, y, z = (device.allocate(512, name) for name in "xyz")
    for buffer in (x, y, z):
        buffer.contents()[:] = 0
    pipeline = device.pipeline("copy_values")

    def launch(source: Any, source_at: int, target: Any, target_at: int) -> Any:
        """Copies 64 words, and says that it touches one of each."""
        bindings = [(0, source, source_at, 4, False), (1, target, target_at, 4, True)]
        return _core.device.Dispatch(pipeline, bindings, 0, b"", 0, (2, 1, 1), 32)

    assert "race of two writes" in device.run([[launch(x, 0, y, 0), launch(x, 0, y, 128)]])[1]
    assert "race of a" in device.run([[launch(x, 0, y, 0), launch(y, 128, z, 0)]])[1]
    assert device.run([[launch(x, 0, y, 0)], [launch(y, 128, z, 0)]])[1] == ""


def dispatch(device: Any, bindings: list[Any], **changes: Any) -> str:
    """The error of one launch of copy_values given by hand."""
    arguments = {"bytes_index": 0, "bytes": b"", "threadgroup_bytes": 0, "threadgroups": (2, 1, 1), "threads": 32}
    arguments |= changes
    one = _core.device.Dispatch(device.pipeline("copy_values"), bindings, **arguments)
    return str(device.run([[one]])[1])


def test_a_write_that_was_not_declared_is_an_error(make_device: Any) -> None:
    device = make_device(checked=True)
    x, y = device.allocate(256, "x"), device.allocate(256, "y")
    x.contents()[:] = 1
    assert "only read" in dispatch(device, [(0, x, 0, 256, False), (1, y, 0, 256, False)])
    assert dispatch(device, [(0, x, 0, 256, False), (1, y, 0, 256, True)]) == ""


def test_wrong_dispatches_are_refused(make_device: Any) -> None:
    device = make_device()
    x, y = device.allocate(256, "x"), device.allocate(256, "y")
    read, write = (0, x, 0, 256, False), (1, y, 0, 256, True)
    assert "slot 1 is bound 0 times" in dispatch(device, [read])
    assert "slot 1 is bound 2 times" in dispatch(device, [read, write, write])
    assert "no buffer in slot 2" in dispatch(device, [read, write, (2, y, 0, 256, False)])
    assert "which has only 256" in dispatch(device, [read, (1, y, 4, 256, True)])
    for offset, size in ((8, 2**64 - 8), (4, 2**64 - 4), (8, 2**64 - 1), (260, 0), (2**64 - 4, 4)):  # ends wrap around
        assert "which has only 256" in dispatch(device, [read, (1, y, offset, size, True)])
    assert "offset 2 is not a multiple of 4" in dispatch(device, [read, (1, y, 2, 254, True)])
    assert "empty range" in dispatch(device, [read, (1, y, 256, 0, True)])
    assert "pointer is const" in dispatch(device, [(0, x, 0, 256, True), write])
    assert "33 threads, not a multiple of 32" in dispatch(device, [read, write], threads=33)
    assert "the kernel allows 1024" in dispatch(device, [read, write], threads=1056)
    assert "grid is empty" in dispatch(device, [read, write], threadgroups=(2, 0, 1))
    assert "65535" in dispatch(device, [read, write], threadgroups=(1, 65536, 1))
    assert "no argument struct" in dispatch(device, [read, write], bytes=b"1234", bytes_index=2)
    assert "takes no threadgroup memory" in dispatch(device, [read, write], threadgroup_bytes=64)
    wrapped = device.wrap(np.zeros(256, np.uint8), "file")
    assert "'file' is read-only memory" in dispatch(device, [read, (1, wrapped, 0, 256, True)])


def test_argument_structs_must_have_the_kernels_size(make_device: Any) -> None:
    from device_runner import KernelError, pack, run

    x = np.ones(8, np.float32)
    buffers = {0: x, 1: x.copy(), 3: np.ones(3, np.float32)}
    options = {"threadgroups": (1,), "threads": 32, "args_slot": 2}
    with pytest.raises(KernelError, match="argument struct has 4 bytes, the kernel's has 8"):
        run(make_device(), "scale_float_1", buffers, args=pack(8), **options)
    with pytest.raises(KernelError, match="argument struct in slot 2 is missing"):
        run(make_device(), "scale_float_1", buffers, **options)
    with pytest.raises(KernelError, match="kernel has it in 2"):
        run(make_device(), "scale_float_1", buffers, args=pack(8, 1.0), **options | {"args_slot": 5})


def test_pipelines_name_what_is_missing(make_device: Any) -> None:
    device = make_device()
    with pytest.raises(BackendError, match="no kernel 'nothing'"):
        device.pipeline("nothing")
    with pytest.raises(BackendError, match=r"function constant 0 \(kRepaired\) has no value"):
        device.pipeline("missing_barrier")
    pipeline = device.pipeline("scale_bfloat_2")
    assert pipeline.slots == [(0, False), (1, True), (3, False)]
    assert pipeline.max_threads_per_threadgroup == 64
    assert device.pipeline("missing_barrier", [(0, 1)]) is device.pipeline("missing_barrier", [(0, 1)])


def test_actual_ranges_are_reported(make_device: Any) -> None:
    from device_runner import pack, run

    device = make_device(checked=True)
    x, y = np.ones(64, np.float32), np.zeros(64, np.float32)
    run(device, "scale_float_1", {0: x, 1: y, 3: np.ones(3, np.float32)}, args=pack(17, 2.0), args_slot=2,
        threadgroups=(1,), threads=32)  # fmt: skip
    ranges = {row[2]: row[3:] for row in device.accesses()}
    assert ranges[0] == (0, 68, 0, 0)
    assert ranges[1] == (0, 0, 0, 68)
    assert ranges[3] == (0, 12, 0, 0)


def test_memory_is_accounted_and_freed(make_device: Any) -> None:
    device = make_device(poison_allocations=True)
    before = device.allocated_bytes
    buffer = device.allocate(1000, "scratch")
    private = device.allocate(24, "private", shared=False)
    assert device.allocated_bytes == before + 1024
    assert np.isnan(buffer.contents().view(np.float32)).all()
    with pytest.raises(ValueError, match="no contents"):
        private.contents()
    view = buffer.contents()
    del buffer, private
    view[:] = 7  # the view keeps its buffer alive
    assert device.allocated_bytes == before + 1000
    del view
    assert device.allocated_bytes == before


def test_a_failing_device_fails_when_told(make_device: Any) -> None:
    device = make_device()
    failing = _test_doubles.FailingDevice(device)
    x, y = device.allocate(256, "x"), device.allocate(256, "y")
    bindings = [(0, x, 0, 256, False), (1, y, 0, 256, True)]
    failing.fail_after(1)
    assert dispatch(failing, bindings) == ""
    assert dispatch(failing, bindings) == "injected failure of a pass"
    assert dispatch(failing, bindings) == "injected failure of a pass"
    failing.recover()
    assert dispatch(failing, bindings) == ""


def test_threads_share_a_device(make_device: Any) -> None:
    from device_runner import run

    device = make_device(workers=3)
    inputs = [np.random.default_rng(seed).standard_normal(4096).astype(np.float32) for seed in range(8)]

    def work(x: np.ndarray[Any, Any]) -> None:
        y = np.zeros(4096, np.float32)
        for _ in range(20):
            y[:] = 0
            run(device, "copy_values", {0: x, 1: y}, threadgroups=(32,), threads=128)
            assert (x == y).all()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, inputs))
