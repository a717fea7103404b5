"""Every check of the sim device fires on a planted fault, naming its line, and stays silent on the repaired kernel."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SOURCE = Path(__file__).parent / "kernels" / "faults.metal"
ORDERS = ("forward", "reverse", "random")

# Kernel, what the checked library says, and text of a line that the report must name.
CHECKED = [
    ("missing_barrier", r"race of", "y[i] = t[127 - i];"),
    ("missing_second_barrier", r"race of", "sum += t[(i + 64) % 128];"),
    ("wrong_flags", r"race of a write and a read|race of a read and a write", "y[i] = t[i ^ 64u];"),
    ("wrong_flags_device", r"race of.*buffer 'buffer 1'", "const float other = y[i ^ 64u];"),
    ("lock_step", r"race of", "y[i] = t[i ^ 1u];"),
    ("simd_as_fence", r"race of", "y[i] = t[i ^ 1u] + s;"),
    ("uninitialised_threadgroup", r"variable 't' offset \d+, which nothing has written", "y[i] = t[i];"),
    ("uninitialised_device", r"'buffer 1' offset \d+, which nothing has written", "y[i] = y[i] + x[i];"),
    ("past_the_end", r"read of 4 bytes out of bounds.*offset 512 of buffer 'buffer 0'", "y[i] = x[kRepaired ? min"),
    ("write_past_the_end", r"write of 4 bytes out of bounds.*offset 512", "y[kRepaired ? i : i + 1] = x[i];"),
    ("before_the_beginning", r"read of 4 bytes out of bounds.*offset -4", "y[i] = x[kRepaired ? int(i)"),
    ("past_threadgroup_array", r"write of 4 bytes (outside every|at offset)", "beyond[i] = x[i];"),
    ("past_register_array", r"index outside the array", "y[i] = values[kRepaired ? i % 4 : i % 5];"),
    ("misaligned_vector", r"misaligned access", "const float4 v = "),
    ("shift_too_far", r"shift by too many bits", "y[i] = x[i] + float(1u <<"),
    ("division_by_zero", r"division by zero", "y[i] = x[i] + float(100u /"),
    ("remainder_of_zero", r"division by zero", "y[i] = x[i] + float(100 %"),
    ("shared_word", r"race of two writes.*another threadgroup", "y[kRepaired ? i : i % 64] = x[i];"),
    ("shared_word_atomics", r"race of", "plain[i % 4] += x[i];"),
]
# What both libraries find.
ALWAYS = [
    ("divergent_barrier", r"threads wait at the threadgroup_barrier|have returned", "if (i < 64 || kRepaired)"),
    ("divergent_simd", r"divergent simdgroup operation", "s = simd_sum(x[i]);\n  } else {\n    s = simd_max"),
    ("simd_after_return", r"while lanes|lanes \w+ of the simdgroup have returned", "y[i] = simd_sum(x[i]);"),
    ("barrier_after_return", r"wait at the threadgroup_barrier|have returned", "if (i >= 96 && !kRepaired) return;\n"),
    ("deadlock", r"wait|have returned", "if (i == 5 && !kRepaired) {\n"),
    ("too_much_memory", r"32772 bytes of threadgroup memory with '\w+'; Metal allows 32768", None),
]
GROUPS = {"shared_word": 4, "shared_word_atomics": 4}


def launch(device: Any, kernel: str, repaired: bool) -> np.ndarray[Any, Any]:
    from device_runner import run

    x = np.arange(128, dtype=np.float32)
    y = np.zeros(128, np.float32)
    if kernel == "uninitialised_device":
        y.view(np.uint16)[:] = 0xFFB5  # what an allocation holds before anything is written
    groups = GROUPS.get(kernel, 1)
    run(device, kernel, {0: x, 1: y}, threadgroups=(groups,), threads=128 // groups, constants={0: int(repaired)})
    return y


def lines_of(text: str) -> range:
    """The lines of the source that the text covers."""
    source = SOURCE.read_text()
    first = source[: source.index(text)].count("\n") + 1
    return range(first, first + text.count("\n") + 1)


def lines_with(text: str) -> list[int]:
    """The lines of the source that hold the text: it may stand in several kernels."""
    return [number for number, line in enumerate(SOURCE.read_text().splitlines(), 1) if text in line]


def failure(device: Any, kernel: str) -> str:
    from device_runner import KernelError

    with pytest.raises(KernelError) as raised:
        launch(device, kernel, repaired=False)
    return str(raised.value)


def named_lines(message: str) -> set[int]:
    return {int(line) for line in re.findall(r"faults\.metal:(\d+)", message)}


@pytest.mark.parametrize(("kernel", "pattern", "text"), CHECKED, ids=[row[0] for row in CHECKED])
@pytest.mark.parametrize("order", ORDERS)
def test_checked_library_finds_the_fault_in_any_order(
    make_device: Any, kernel: str, pattern: str, text: str, order: str
) -> None:
    message = failure(make_device(checked=True, order=order), kernel)
    assert message.startswith(kernel + ":")
    assert re.search(pattern, message), message
    lines = set(lines_with(text))
    assert named_lines(message) & lines, (message, lines)


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize(("kernel", "pattern", "text"), ALWAYS, ids=[row[0] for row in ALWAYS])
@pytest.mark.parametrize("order", ORDERS)
def test_both_libraries_find_divergence_and_too_much_memory(
    make_device: Any, kernel: str, pattern: str, text: str | None, order: str, checked: bool
) -> None:
    message = failure(make_device(checked=checked, order=order), kernel)
    assert re.search(pattern, message), message
    if text is not None:
        lines = lines_of(text)
        assert any(lines.start <= line <= lines.stop + 2 for line in named_lines(message)), (message, lines)


@pytest.mark.parametrize("kernel", [row[0] for row in CHECKED + ALWAYS])
def test_repaired_kernels_pass_with_the_same_bits_in_any_order(make_device: Any, kernel: str) -> None:
    results = [
        launch(make_device(checked=checked, order=order, seed=seed), kernel, repaired=True)
        for checked in (False, True)
        for order, seed in (("forward", 0), ("reverse", 0), ("random", 1), ("random", 2))
    ]
    assert np.isfinite(results[0]).all()
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])


def test_fast_library_turns_faults_at_guard_pages_into_errors(make_device: Any) -> None:
    device = make_device(checked=False)
    for kernel in ("past_the_end", "write_past_the_end"):
        message = failure(device, kernel)
        assert "invalid memory access at offset 512" in message
        assert "which has 512 bytes" in message
    assert launch(device, "past_the_end", repaired=True)[0] == 1.0  # the device goes on


@pytest.mark.parametrize("checked", [False, True])
def test_an_exhausted_stack_is_an_error(make_device: Any, checked: bool) -> None:
    assert "stack of 131072 bytes is exhausted" in failure(make_device(checked=checked), "deep_stack")


def test_fast_library_shows_uninitialised_threadgroup_memory_as_nan(make_device: Any) -> None:
    y = launch(make_device(checked=False), "uninitialised_threadgroup", repaired=False)
    assert np.isnan(y[100:]).all()
    assert (y[:100] == np.arange(100)).all()


def test_random_orders_expose_a_missing_barrier_in_the_fast_library(make_device: Any) -> None:
    expected = launch(make_device(), "missing_second_barrier", repaired=True)
    results = [
        launch(make_device(order="random", seed=seed), "missing_second_barrier", repaired=False) for seed in range(5)
    ]
    assert any((result != expected).any() for result in results)
