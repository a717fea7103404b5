"""Single kernels, for tests, verification and benchmarks."""

from typing import Annotated

import numpy
from numpy.typing import NDArray

import lily._core


def multiply(isa: str, format: lily._core.MatrixFormat, element_type: lily._core.ElementType, group_size: int, weight: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], scales: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], biases: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')]) -> None: ...

def time_reads(threads: int, bytes: int, passes: int) -> list[float]:
    """
    Seconds that the threads take to read so many bytes each, for each pass.
    """
