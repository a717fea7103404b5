"""Devices that run Metal kernels, for tests and verification."""

from collections.abc import Sequence
from typing import Annotated

import numpy
from numpy.typing import NDArray


class Buffer:
    @property
    def size(self) -> int: ...

    @property
    def label(self) -> str: ...

    def contents(self) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C')]:
        """The bytes of a shared buffer, as a writable view."""

class Pipeline:
    @property
    def name(self) -> str: ...

    @property
    def max_threads_per_threadgroup(self) -> int: ...

    @property
    def slots(self) -> list[tuple[int, bool]]: ...

class Dispatch:
    def __init__(self, pipeline: Pipeline, bindings: Sequence[tuple[int, Buffer, int, int, bool]], bytes_index: int, bytes: bytes, threadgroup_bytes: int, threadgroups: tuple[int, int, int], threads: int) -> None: ...

class Device:
    @property
    def name(self) -> str: ...

    @property
    def allocated_bytes(self) -> int: ...

    def allocate(self, size: int, label: str = '', shared: bool = True) -> Buffer: ...

    def wrap(self, array: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], label: str = '') -> Buffer: ...

    def pipeline(self, kernel: str, constants: Sequence[tuple[int, int]] = []) -> Pipeline: ...

    def run(self, stages: Sequence[Sequence[Dispatch]]) -> tuple[float, str]:
        """
        Runs lists of dispatches, one list a stage; returns the seconds it took and the error, empty for none.
        """

class SimDevice(Device):
    """The CPU as a device for Metal kernels, with checks."""

    def __init__(self, *, checked: bool = False, order: str = 'forward', seed: int = 0, shuffle_stage: bool = False, check_declared_ranges: bool = True, poison_allocations: bool = False, workers: int = 0, library: str = '') -> None: ...

    def kernel_names(self) -> list[str]: ...

    def accesses(self) -> list[tuple[int, int, int, int, int, int, int]]:
        """
        Of the latest pass: (stage, dispatch, slot, read begin, read end, written begin, written end).
        """

class FailingDevice(Device):
    """A device whose passes fail on demand."""

    def __init__(self, device: Device) -> None: ...

    def fail_after(self, passes: int) -> None: ...

    def recover(self) -> None: ...
