"""read_bandwidth: how fast this machine reads memory, which limits decoding."""

from __future__ import annotations

import statistics

from lily import _core

__all__ = ["read_bandwidth"]

_BUFFER_BYTES = 1 << 30  # of each thread; larger than any cache


def read_bandwidth(threads: int, *, buffer_bytes: int = _BUFFER_BYTES, runs: int = 5) -> float:
    """Bytes a second that `threads` threads read together: the median over `runs` passes.

    Parameters
    ----------
    threads : int
        Threads that read at the same time, each from its own buffer.
    buffer_bytes : int
        Bytes of each buffer.
    runs : int
        Timed passes, after an untimed one.
    """
    seconds = _core.kernels.time_reads(threads, buffer_bytes, runs + 1)
    return threads * buffer_bytes / statistics.median(seconds[1:])
