"""read_bandwidth: how fast this machine's memory is read, which bounds decoding."""

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
        Threads that read at once, each from a buffer of its own.
    buffer_bytes : int
        Bytes of each buffer.
    runs : int
        Timed passes, after one that is not timed.
    """
    seconds = _core.kernels.time_reads(threads, buffer_bytes, runs + 1)
    return threads * buffer_bytes / statistics.median(seconds[1:])
