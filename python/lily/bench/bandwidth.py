"""read_bandwidth: how fast this machine's memory is read, which bounds decoding."""

from __future__ import annotations

import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

__all__ = ["read_bandwidth"]

_BUFFER_BYTES = 1 << 30  # of each thread; larger than any cache


def read_bandwidth(threads: int, *, buffer_bytes: int = _BUFFER_BYTES, runs: int = 5) -> float:
    """Bytes a second that `threads` threads read together: the median over `runs` passes.

    Parameters
    ----------
    threads : int
        Threads that read at once, each from a buffer of its own.
    buffer_bytes : int
        Bytes of each buffer.
    runs : int
        Timed passes, after one that is not timed.
    """
    buffers = [np.ones(buffer_bytes // 4, dtype=np.float32) for _ in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        seconds = []
        for _ in range(runs + 1):
            start = time.perf_counter()
            list(pool.map(np.maximum.reduce, buffers))
            seconds.append(time.perf_counter() - start)
    return sum(buffer.nbytes for buffer in buffers) / statistics.median(seconds[1:])
