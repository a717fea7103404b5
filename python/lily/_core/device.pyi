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

    def read(self, offset: int, size: int) -> bytes: ...

    def write(self, offset: int, values: bytes) -> None: ...

    def clear(self) -> None: ...

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

class MetalFacts:
    """What a machine with Metal has."""

    @property
    def device(self) -> str: ...

    @property
    def architecture(self) -> str: ...

    @property
    def family(self) -> str: ...

    @property
    def system(self) -> str: ...

    @property
    def language(self) -> str: ...

    @property
    def problem(self) -> str: ...

    @property
    def working_set_bytes(self) -> int: ...

    @property
    def buffer_bytes(self) -> int: ...

    @property
    def threadgroup_bytes(self) -> int: ...

    @property
    def page_bytes(self) -> int: ...

    @property
    def unified_memory(self) -> bool: ...

    @property
    def residency_sets(self) -> bool: ...

    @property
    def tensor_gemm(self) -> bool: ...

    @property
    def tensor_reason(self) -> str: ...

    @property
    def kernels(self) -> int: ...

    @property
    def rejected(self) -> list[str]: ...

def metal_facts() -> MetalFacts | None:
    """What this machine has, or None in a build without Metal."""

def open(name: str) -> Device:
    """
    The device of that name, for tests and verification; BackendError lists the available ones.
    """

class InspectingDevice(Device):
    """
    Runs launches one at a time, and shows those that wants(kernel, constants) asks for:
    show(kernel, constants, {slot: bytes before}, {written slot: bytes after}, arguments).
    """

    def __init__(self, device: Device, wants: object, show: object) -> None: ...

class CudaDevice(Device):
    """The first NVIDIA GPU."""

    def __init__(self, *, library: str = '', cache: str = '', synchronous: bool = False) -> None: ...

    def kernel_names(self) -> list[str]: ...

class CudaCompiler:
    """Compiles the kernels of a folder; needs NVRTC but no GPU."""

    def __init__(self, *, library: str = '') -> None: ...

    @property
    def version(self) -> str: ...

    def kernel_names(self) -> list[str]: ...

    def constants(self, kernel: str) -> list[tuple[int, str]]:
        """Index and name of the function constants that a kernel uses."""

    def compile(self, kernel: str, constants: Sequence[tuple[int, int]], architecture: str = 'sm_90') -> tuple[bytes, str]:
        """The machine code, and the compiler's report of registers and spills."""

class SimDevice(Device):
    """The CPU as a device for Metal kernels, with checks."""

    def __init__(self, *, checked: bool = False, order: str = 'forward', seed: int = 0, shuffle_stage: bool = False, check_declared_ranges: bool = True, poison_allocations: bool = False, workers: int = 0, library: str = '') -> None: ...

    def kernel_names(self) -> list[str]: ...

    def accesses(self) -> list[tuple[int, int, int, int, int, int, int]]:
        """
        Of the latest pass: (stage, dispatch, slot, read begin, read end, written begin, written end).
        """
