"""Every part of the Metal vocabulary against NumPy, in every order of threads, fast and checked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

DEVICES = [
    {"checked": checked, "order": order, "seed": seed, "poison_allocations": True}
    for checked in (False, True)
    for order, seed in (("forward", 0), ("reverse", 0), ("random", 7))
]
NAMES = [f"{'checked' if options['checked'] else 'fast'}-{options['order']}" for options in DEVICES]
devices = pytest.mark.parametrize("options", DEVICES, ids=NAMES)


def butterfly(values: Any, combine: Any) -> Any:
    """A reduction of 32 values in the tree that every device uses."""
    while len(values) > 1:
        values = combine(values[: len(values) // 2], values[len(values) // 2 :])
    return values[0]


@devices
def test_simdgroup_operations_on_float(make_device: Any, options: Any) -> None:
    from device_runner import from_bfloat16, run, to_bfloat16

    x = np.random.default_rng(1).standard_normal(32).astype(np.float32)
    out = np.zeros((15, 32), np.float32)
    run(make_device(**options), "simd_float", {0: x, 1: out}, threadgroups=(1,), threads=32)
    lanes = np.arange(32)
    running = x.copy()
    for distance in (1, 2, 4, 8, 16):
        running = np.where(lanes >= distance, running + np.roll(running, distance), running)
    prefix = np.concatenate([[np.float32(0)], running[:-1]])
    total = butterfly(x, np.add)
    q = [total, butterfly(np.float32(2) * x, np.add), butterfly(np.float32(3) * x, np.add), np.float32(32)]
    once_rounded = (x.astype(np.float64) * np.float32(0.01) + 1).astype(np.float32)  # a fused multiply-add
    expected = [
        total, x.max(), x.min(), butterfly(once_rounded, np.multiply), prefix, running,
        x[lanes ^ 5], x[np.where(lanes + 3 > 31, lanes, lanes + 3)], x[np.where(lanes < 3, lanes, lanes - 3)], x[17],
        x[(lanes * 7 + 3) % 32], x[0], q[0] + q[2] - q[2] + q[3], x.astype(np.float16).astype(np.float32)[lanes ^ 1],
        from_bfloat16(to_bfloat16(x))[lanes ^ 2],
    ]  # fmt: skip
    for row, want in zip(out, expected, strict=True):
        np.testing.assert_array_equal(row, np.broadcast_to(np.asarray(want, np.float32), 32))


@devices
def test_simdgroup_operations_on_uint(make_device: Any, options: Any) -> None:
    from device_runner import run

    x = np.random.default_rng(2).integers(0, 2**31, 32).astype(np.uint32)
    out = np.zeros((8, 32), np.uint32)
    run(make_device(**options), "simd_uint", {0: x, 1: out}, threadgroups=(1,), threads=32)
    lanes = np.arange(32, dtype=np.uint64)
    odd = (x & 1).astype(np.uint64)
    expected = [
        x.sum(dtype=np.uint64) & np.uint64(0xFFFFFFFF), np.bitwise_or.reduce(x),
        np.bitwise_and.reduce(x | np.uint32(0xF0000000)), np.bitwise_xor.reduce(x), np.cumsum(odd) - odd,
        (odd << lanes).sum(), 1 + 2 + 4 * (lanes == 0), x.max(),
    ]  # fmt: skip
    for row, want in zip(out, expected, strict=True):
        np.testing.assert_array_equal(row, np.broadcast_to(np.asarray(want, np.uint64), 32))


@devices
@pytest.mark.parametrize(("count", "negate", "shift"), [(128, 0, 3), (96, 1, 0)])
def test_threadgroups(make_device: Any, options: Any, count: int, negate: int, shift: int) -> None:
    from device_runner import run

    keys = np.random.default_rng(3).integers(0, 2**20, (6, count)).astype(np.uint32)
    histogram, total = np.zeros(8, np.uint32), np.zeros(1, np.float32)
    extremes = np.array([2**30, -5], np.int32)
    out = np.full((6, count, 4), np.nan, np.float32)
    run(make_device(**options), "group", {0: keys, 1: histogram, 2: out, 3: total, 4: extremes}, threadgroups=(2, 3),
        threads=count, constants={3: count, 4: negate, 5: shift}, threadgroup_bytes=count * 4)  # fmt: skip
    np.testing.assert_array_equal(histogram, np.bincount(keys.ravel() & 7, minlength=8))
    assert total[0] == 0.25 * keys.size
    assert extremes.tolist() == [(keys & 1023).min(), (keys & 1023).max()]
    table = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    index, row = np.arange(count), np.arange(6)[:, None]
    value = (31 - index % 32) + 100 * (count // 32 - 1 - index // 32)
    other = keys[:, ::-1]
    np.testing.assert_array_equal(out[:, :, 0], (-value if negate else value) + table[other & 7] + 2**shift)
    np.testing.assert_array_equal(out[:, :, 1], np.broadcast_to((keys & 1).sum(1, keepdims=True), (6, count)))
    np.testing.assert_array_equal(out[:, :, 2], 7 + row % 2 * count + index + 10000 * (row // 2))
    np.testing.assert_array_equal(out[:, :, 3], np.broadcast_to(-(index // 32 + 1), (6, count)))


@devices
def test_simdgroup_matrices(make_device: Any, options: Any) -> None:
    from device_runner import run

    rng = np.random.default_rng(4)
    a, b = (rng.standard_normal((8, 8)).astype(np.float32) for _ in range(2))
    half = rng.standard_normal((8, 8)).astype(np.float16)
    c = np.full((3, 8, 8), np.nan, np.float32)
    run(make_device(**options), "matrices", {0: a, 1: b, 2: half, 3: c}, threadgroups=(1,), threads=32)
    left, right, wide = a.astype(np.float64), b.astype(np.float64), half.astype(np.float64)
    expected = [left @ right + 2 * np.eye(8), (left.T @ right).T, wide @ wide]
    sizes = [
        np.abs(left) @ np.abs(right) + 2 * np.eye(8), (np.abs(left.T) @ np.abs(right)).T, np.abs(wide) @ np.abs(wide)
    ]  # fmt: skip
    for got, want, size in zip(c, expected, sizes, strict=True):
        assert (np.abs(got - want) <= 8 * 2.0**-24 * size).all()  # eight fused steps, each rounds once


@devices
def test_mathematics(make_device: Any, options: Any) -> None:
    from device_runner import from_bfloat16, run, to_bfloat16

    rng = np.random.default_rng(5)
    x = np.exp(rng.standard_normal(96) * 2).astype(np.float32)
    y = (rng.standard_normal(96) * 2).astype(np.float32)
    y[:5] = [0.5, -0.5, 1.5, 2.5, -2.0]
    out = np.full((26, 96), np.nan, np.float32)
    run(make_device(**options), "mathematics", {0: x, 1: y, 2: out}, threadgroups=(3,), threads=32)
    a, b, bits = x.astype(np.float64), y.astype(np.float64), x.view(np.uint32)
    v = [a, b, np.ones(96), np.full(96, 2.0)]
    w = [np.maximum(v[i], 0.5) * v[3 - i] + 1 for i in range(4)]
    lowest = np.array([(int(word) & -int(word)).bit_length() - 1 for word in bits])
    highest = np.array([32 - int(word).bit_length() for word in bits])
    ones = np.array([bin(word).count("1") for word in bits])
    half_x, half_y = x.astype(np.float16), y.astype(np.float16)
    expected = [
        np.exp(b), np.exp2(b), np.log(a), np.log2(a), np.sqrt(a), 1 / np.sqrt(a), np.sin(b), np.cos(b), np.tanh(b),
        np.power(a, b), a * b + 1, np.floor(b) + 10 * np.ceil(b), np.rint(b) + 10 * np.trunc(b),
        np.clip(b, -1, 1) + np.minimum(a, b) + np.maximum(a, b), ones + 100 * highest + 10000 * lowest,
        np.abs(b) + np.sign(b) + a - np.floor(a), w[0] + 0.5 * w[1] + 0.25 * w[2] + 0.125 * w[3],
        np.where(b > 0, 2, 1) + 4 * ((a > 3) | (b > 3)), from_bfloat16(to_bfloat16(y)), half_y.astype(np.float64),
        (half_y * half_x + np.float16(1)).astype(np.float64),
        sum((i + 1) * (bits >> np.uint32(8 * i) & 255).astype(np.float64) for i in range(4)), np.full(96, 65532.0),
        np.ones(96), a + (b - a) * 0.25 + np.copysign(a, b),
        (bits >> np.uint32(16)).astype(np.float64) + (bits >> np.uint32(23) & 255),
    ]  # fmt: skip
    for row, (got, want) in enumerate(zip(out, expected, strict=True)):
        # A few roundings of float32, also where terms cancel.
        np.testing.assert_allclose(got, want, rtol=5e-7, atol=5e-7 * np.abs(want).max(), err_msg=f"function {row}")


@devices
def test_template_instances(make_device: Any, options: Any) -> None:
    from device_runner import from_bfloat16, pack, run, to_bfloat16

    x = np.random.default_rng(6).standard_normal(101).astype(np.float32)
    offsets = np.array([0.5, -1.0, 2.0], np.float32)
    # Twice a value is exact, so that a fused multiply-add gives the same.
    want = x * np.float32(2) + offsets[np.arange(101) % 3]
    y = np.zeros(101, np.float32)
    run(make_device(**options), "scale_float_1", {0: x, 1: y, 3: offsets}, args=pack(101, 2.0), args_slot=2,
        threadgroups=(4,), threads=32)  # fmt: skip
    np.testing.assert_array_equal(y, want)
    narrow = np.zeros(101, np.uint16)
    run(make_device(**options), "scale_bfloat_2", {0: to_bfloat16(x), 1: narrow, 3: offsets}, args=pack(101, 2.0),
        args_slot=2, threadgroups=(1,), threads=64)  # fmt: skip
    wide = from_bfloat16(to_bfloat16(x)) * np.float32(2) + offsets[np.arange(101) % 3]
    np.testing.assert_array_equal(narrow, to_bfloat16(wide))
