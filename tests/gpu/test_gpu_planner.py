"""Stages and scratch placement of random passes, against rules that are checked pair by pair."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lily import _core

# An operand is (memory, offset, size, access); memory -1 - n is piece n of scratch memory.
Operand = tuple[int, int, int, str]
Operation = list[Operand]

SIZE = 48  # bytes of every buffer
SIZES = (48, 300, 1100)  # of pieces of scratch memory, which is laid out in steps of 256
quiet = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a loaded machine is no failure


@st.composite
def operands(draw: st.DrawFn, scratch: list[int]) -> Operand:
    memory = draw(st.integers(-len(scratch), 2))
    total = SIZE if memory >= 0 else scratch[-1 - memory]
    offset = draw(st.integers(0, total - 1))
    # Whole pieces often, so that many operations meet in the same bytes.
    size = draw(st.integers(1, total - offset))
    if draw(st.booleans()):
        offset, size = 0, total
    return memory, offset, size, draw(st.sampled_from(["r", "w", "rw"]))


@st.composite
def passes(draw: st.DrawFn) -> tuple[list[Operation], list[int]]:
    """Operations (an empty one is host work) and the sizes of scratch pieces."""
    scratch = draw(st.lists(st.sampled_from(SIZES), max_size=6))
    operation = st.lists(operands(scratch), min_size=1, max_size=4)
    host_work = st.just([])
    operations = draw(st.lists(st.one_of(operation, operation, operation, operation, host_work), max_size=24))
    return operations, scratch


def conflict(first: Operation, second: Operation) -> bool:
    """Whether the order of two operations matters."""
    if not first or not second:
        return True
    return any(
        a[0] == b[0] and a[1] < b[1] + b[2] and b[1] < a[1] + a[2] and (a[3] != "r" or b[3] != "r")
        for a in first
        for b in second
    )


def minimal_stages(operations: list[Operation]) -> list[int]:
    stages: list[int] = []
    for index, operation in enumerate(operations):
        before = [stages[i] for i in range(index) if conflict(operations[i], operation)]
        stages.append(max(before, default=-1) + 1)
    return stages


def execute(operations: list[Operation], order: list[int], place: list[int], scratch_bytes: int) -> bytes:
    """What memory holds after operations that mix what they read into what they write."""
    buffers = {memory: np.zeros(SIZE, np.uint64) for memory in range(3)}
    scratch = np.zeros(max(scratch_bytes, 1), np.uint64)

    def view(operand: Operand) -> np.ndarray:
        memory, offset, size, _ = operand
        if memory >= 0:
            return buffers[memory][offset : offset + size]
        begin = place[-1 - memory] + offset
        return scratch[begin : begin + size]

    initialised: set[tuple[int, int]] = set()
    observed: dict[int, int] = {}
    for index in order:
        value = index + 1
        for operand in operations[index]:
            memory, offset, size, access = operand
            if access != "w":
                # Scratch memory is undefined until written: read only what this pass has written.
                cells = [memory >= 0 or (memory, offset + i) in initialised for i in range(size)]
                mixed = np.where(cells, view(operand), np.uint64(7))
                for cell in mixed.tolist():
                    value = (value * 1_000_003 + cell) % (1 << 61)
        for operand in operations[index]:
            memory, offset, size, access = operand
            if access != "r":
                view(operand)[:] = value
                initialised.update((memory, offset + i) for i in range(size))
        observed[index] = value
    return b"".join(buffers[memory].tobytes() for memory in range(3)) + str(sorted(observed.items())).encode()


@quiet
@given(passes())
def test_stages_are_the_earliest_that_hazards_allow(case: tuple[list[Operation], list[int]]) -> None:
    operations, scratch = case
    stages, _, _ = _core.gpu.plan_operations(operations, scratch, True)
    assert stages == minimal_stages(operations)


@quiet
@given(passes(), st.integers(0, 1 << 32))
def test_any_order_inside_stages_gives_the_serial_result(case: tuple[list[Operation], list[int]], seed: int) -> None:
    operations, scratch = case
    stages, offsets, size = _core.gpu.plan_operations(operations, scratch, True)
    apart = [sum(scratch[:index]) for index in range(len(scratch))]
    serial = execute(operations, list(range(len(operations))), apart, sum(scratch))
    shuffled = list(range(len(operations)))
    random.Random(seed).shuffle(shuffled)
    shuffled.sort(key=lambda index: stages[index])
    assert execute(operations, shuffled, offsets, size) == serial


@quiet
@given(passes())
def test_shared_scratch_memory_is_never_in_use_twice(case: tuple[list[Operation], list[int]]) -> None:
    operations, scratch = case
    stages, offsets, size = _core.gpu.plan_operations(operations, scratch, True)
    life: dict[int, tuple[int, int]] = {}
    for stage, operation in zip(stages, operations, strict=True):
        for memory, *_ in operation:
            if memory < 0:
                first, last = life.get(-1 - memory, (stage, stage))
                life[-1 - memory] = (min(first, stage), max(last, stage))
    for a, (first, last) in life.items():
        assert offsets[a] + scratch[a] <= size
        for b in life:
            disjoint = last < life[b][0] or life[b][1] < first
            apart = offsets[a] + scratch[a] <= offsets[b] or offsets[b] + scratch[b] <= offsets[a]
            assert a == b or disjoint or apart


@quiet
@given(passes())
def test_serial_mode_has_a_stage_for_every_operation(case: tuple[list[Operation], list[int]]) -> None:
    operations, scratch = case
    stages, offsets, size = _core.gpu.plan_operations(operations, scratch, False)
    assert stages == list(range(len(operations)))
    apart = [sum(scratch[:index]) for index in range(len(scratch))]
    serial = execute(operations, stages, apart, sum(scratch))
    assert execute(operations, stages, offsets, size) == serial


def test_a_chain_reuses_two_pieces_of_scratch_memory() -> None:
    count = 50
    operations = [[(-1 - i, 0, 1000, "r"), (-2 - i, 0, 1000, "w")] for i in range(count)]
    stages, _, size = _core.gpu.plan_operations(operations, [1000] * (count + 1), True)
    assert stages == list(range(count))
    assert size == 2 * 1024


def test_independent_operations_share_no_scratch_memory() -> None:
    operations = [[(-1 - i, 0, 1000, "w")] for i in range(5)]
    stages, offsets, size = _core.gpu.plan_operations(operations, [1000] * 5, True)
    assert stages == [0] * 5
    assert sorted(offsets) == [1024 * i for i in range(5)]
    assert size == 5 * 1024


@pytest.mark.parametrize("readers", [(2, 0), (0, 2), (2, 1, 0), (1, 2, 0, 1)])
def test_an_early_read_forgets_no_later_one(readers: tuple[int, ...]) -> None:
    """A write waits for the latest stage that reads, in whatever order the reads were recorded."""
    chain: list[Operation] = [[(0, 0, 8, "w")], [(0, 0, 8, "r"), (1, 0, 8, "w")]]
    reads: list[Operation] = [
        {0: [(2, 0, 8, "r")], 1: [(0, 0, 8, "r"), (2, 0, 8, "r")], 2: [(1, 0, 8, "r"), (2, 0, 8, "r")]}[stage]
        for stage in readers
    ]
    stages, _, _ = _core.gpu.plan_operations([*chain, *reads, [(2, 0, 8, "w")]], [], True)
    assert stages == [0, 1, *readers, max(readers) + 1]


@pytest.mark.parametrize(
    ("first", "second", "stage"),
    [("w", "r", 1), ("r", "w", 1), ("w", "w", 1), ("rw", "r", 1), ("r", "rw", 1), ("r", "r", 0)],
)
def test_hazards_of_each_kind(first: str, second: str, stage: int) -> None:
    stages, _, _ = _core.gpu.plan_operations([[(0, 8, 8, first)], [(0, 15, 8, second)]], [], True)
    assert stages == [0, stage]
    stages, _, _ = _core.gpu.plan_operations([[(0, 8, 8, first)], [(0, 16, 8, second)]], [], True)
    assert stages == [0, 0]
