"""The tile product of lily_tile.h, as simdgroup matrices (checked library) and as the device's own (fast library)."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

KERNELS = [
    ("tile_product_bfloat_16", 16, 64, True),
    ("tile_product_bfloat_32", 32, 64, True),
    ("tile_product_bfloat_64", 64, 64, True),
    ("tile_product_float_32", 32, 32, False),
]
SHAPES = [(1, 1, 32), (33, 65, 64), (77, 131, 96), (64, 64, 40)]


def product(device: Any, kernel: str, rows: int, columns: int, a: Any, b: Any) -> tuple[Any, Any]:
    from device_runner import pack, run

    m, k = a.shape
    n = b.shape[0]
    c, narrow = np.full((m, n), np.nan, np.float32), np.full((m, n), 0xFFFF, np.uint16)
    run(device, kernel, {0: a, 1: b, 2: c, 3: narrow}, args=pack(m, n, k), threads=128,
        threadgroups=(-(-n // columns), -(-m // rows)))  # fmt: skip
    return c, narrow


@pytest.mark.parametrize(("kernel", "rows", "columns", "is_bfloat"), KERNELS)
@pytest.mark.parametrize("shape", SHAPES)
def test_tile_product(
    make_device: Any, kernel: str, rows: int, columns: int, is_bfloat: bool, shape: tuple[int, int, int]
) -> None:
    from device_runner import from_bfloat16, to_bfloat16

    m, n, k = shape
    rng = np.random.default_rng(m * 1000 + n)
    a = rng.standard_normal((m, k)).astype(np.float32)
    b = rng.standard_normal((n, k)).astype(np.float32)
    left, right = a, b
    if is_bfloat:
        left, right = to_bfloat16(a), to_bfloat16(b)
        a, b = from_bfloat16(left), from_bfloat16(right)
    c, narrow = product(make_device(), kernel, rows, columns, left, right)
    expected = a.astype(np.float64) @ b.astype(np.float64).T
    # Each of k fused steps rounds once: at most k / 2^24 of the sum of magnitudes.
    bound = k * 2.0**-24 * (np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64).T)
    assert (np.abs(c - expected) <= bound).all()
    np.testing.assert_array_equal(narrow, to_bfloat16(c))
    for options in ({"order": "reverse"}, {"order": "random", "seed": 4}, {"checked": True}):
        other, other_narrow = product(make_device(**options), kernel, rows, columns, left, right)
        np.testing.assert_array_equal(other, c)  # both implementations sum in the same order
        np.testing.assert_array_equal(other_narrow, narrow)


@pytest.mark.parametrize("rows", [32, 64])
@pytest.mark.parametrize("depth", [32, 96])
def test_product_with_weights_in_registers(make_device: Any, rows: int, depth: int) -> None:
    from device_runner import from_bfloat16, pack, run, to_bfloat16

    if rows == 32 and os.environ.get("LILY_TEST_DEVICE") == "cuda":
        pytest.skip("tensor cores take 16 rows at a time")
    rng = np.random.default_rng(rows + depth)
    a, b, values = (
        to_bfloat16(rng.standard_normal(shape).astype(np.float32)) for shape in ((rows, depth), (32, depth), (32, 64))
    )

    def product(device: Any) -> tuple[Any, Any, Any]:
        c, maxima, totals = (np.full(shape, np.nan, np.float32) for shape in ((rows, 64), rows, rows))
        run(device, f"weighted_product_{rows}", {0: a, 1: b, 2: values, 3: c, 4: maxima, 5: totals},
            args=pack(depth), threadgroups=(1,), threads=128)  # fmt: skip
        return c, maxima, totals

    c, maxima, totals = product(make_device())
    left, right = from_bfloat16(a).astype(np.float64), from_bfloat16(b).astype(np.float64)
    weights = np.maximum(left @ right.T, 0)
    # Each fused step rounds once; a weight that is rounded to bfloat16 loses up to 2^-8 of itself, or of what it erred.
    error = depth * 2.0**-24 * (np.abs(left) @ np.abs(right).T)
    assert (np.abs(maxima - weights.max(1)) <= error.max(1)).all()
    assert (np.abs(totals - weights.sum(1)) <= error.sum(1) + 32 * 2.0**-24 * weights.sum(1)).all()
    exact = from_bfloat16(values).astype(np.float64)
    bound = (2 * error + (2.0**-8 + 32 * 2.0**-24) * weights) @ np.abs(exact)
    assert (np.abs(c - weights @ exact) <= bound).all()
    for options in ({"order": "reverse"}, {"order": "random", "seed": 4}, {"checked": True}):
        for other, same in zip(product(make_device(**options)), (c, maxima, totals), strict=True):
            np.testing.assert_array_equal(other, same)  # both implementations sum in the same order
