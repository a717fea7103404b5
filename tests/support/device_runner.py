"""Runs one Metal kernel on a device with NumPy arrays as buffers: what the tests of kernels are written with."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lily import _core

Shape3 = tuple[int, int, int]
Range = tuple[int, int]


@dataclass
class Launch:
    """One dispatch.

    ``buffers`` maps slots to arrays; the same array in two slots, or in two launches, is one buffer. ``args`` is the
    argument struct as bytes (see :func:`pack`), in slot ``args_slot`` (by default the slot after the buffers').
    ``threadgroups`` has one to three numbers. ``ranges`` narrows what a slot may touch, (first byte, bytes).
    """

    kernel: str
    buffers: Mapping[int, np.ndarray[Any, Any]]
    threadgroups: Sequence[int]
    threads: int
    args: bytes = b""
    args_slot: int | None = None
    constants: Mapping[int, int] = field(default_factory=dict)
    threadgroup_bytes: int = 0
    ranges: Mapping[int, Range] = field(default_factory=dict)


class KernelError(Exception):
    """The device reported an error: the message names kernel, buffer and line."""


ROOT = Path(__file__).resolve().parents[2]


@functools.cache
def sim(**options: Any) -> Any:
    """A sim device with these options, made once: ``sim(checked=True, order="random", seed=3)``.

    With ``LILY_KERNELS=gemv,norm`` in the environment the library is built from metal/gemv.metal and metal/norm.metal
    alone, for work on a few kernels; else it is the one of Lily's own build. With ``LILY_TEST_DEVICE=cuda`` it is the
    GPU, whatever the options: the tests then run each kernel several times there and compare the bits.
    """
    names = os.environ.get("LILY_KERNELS")
    sources = [ROOT / "metal" / f"{name}.metal" for name in names.split(",")] if names else []
    if os.environ.get("LILY_TEST_DEVICE", "sim") == "cuda":
        return cuda(str(build_cuda(sources)) if sources else "")
    if sources and "library" not in options:
        options["library"] = str(build(sources, bool(options.get("checked"))))
    return _core.device.SimDevice(**options)


@functools.cache
def cuda(library: str = "") -> Any:
    """The GPU, with the kernels of this folder, made once."""
    return _core.device.CudaDevice(library=library)


def build(sources: Sequence[Path], checked: bool) -> Path:
    """Builds a library of these .metal files alone; nothing is done again that has not changed."""
    from msl.build_library import build_library

    flavour = "checked" if checked else "fast"
    folder = ROOT / "build" / "kernels" / "-".join(path.stem for path in sources) / flavour
    with _alone(folder):
        return build_library(sources, folder, checked)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keeps other processes, which run tests beside this one, from building in the same folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build_cuda(sources: Sequence[Path]) -> Path:
    """Translates these .metal files alone for the cuda device."""
    from msl.build_library import default_compiler
    from msl.cuda_library import build_cuda_library

    folder = ROOT / "build" / "kernels" / "-".join(path.stem for path in sources) / "cuda"
    with _alone(folder):
        return build_cuda_library(sources, folder, default_compiler(), [ROOT / "metal"])


def pack(*values: float) -> bytes:
    """The bytes of an argument struct: Python ints as int32 or uint32, floats as float32, in order."""
    return b"".join(
        struct.pack("<f", value) if isinstance(value, float) else struct.pack("<I", int(value) & 0xFFFFFFFF)
        for value in values
    )


def run(
    device: Any,
    kernel: str,
    buffers: Mapping[int, np.ndarray[Any, Any]],
    *,
    threadgroups: Sequence[int],
    threads: int,
    args: bytes = b"",
    args_slot: int | None = None,
    constants: Mapping[int, int] | None = None,
    threadgroup_bytes: int = 0,
) -> float:
    """Runs one kernel; arrays in slots that the kernel writes are changed in place. Returns seconds on the device.

    Raises
    ------
    KernelError
        With what the device found wrong.
    """
    launch = Launch(kernel, buffers, threadgroups, threads, args, args_slot, dict(constants or {}), threadgroup_bytes)
    return run_stages(device, [[launch]])


def run_stages(device: Any, stages: Sequence[Sequence[Launch]]) -> float:
    """Runs stages of launches that share arrays as one pass; see :func:`run`."""
    held = _Buffers(device)
    dispatches = [[_dispatch(device, launch, held) for launch in stage] for stage in stages]
    seconds, error = device.run(dispatches)
    held.copy_back()
    if error:
        raise KernelError(error)
    return float(seconds)


class _Buffers:
    """Device buffers of the arrays of one pass."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._buffers: dict[int, tuple[Any, np.ndarray[Any, Any]]] = {}
        self._written: set[int] = set()

    def buffer(self, array: np.ndarray[Any, Any], label: str, written: bool) -> Any:
        assert array.flags.c_contiguous, f"{label} must be contiguous"
        key = id(array)
        if key not in self._buffers:
            buffer = self._device.allocate(array.nbytes, label)
            buffer.contents()[:] = array.reshape(-1).view(np.uint8)
            self._buffers[key] = (buffer, array)
        if written:
            self._written.add(key)
        return self._buffers[key][0]

    def copy_back(self) -> None:
        for key in self._written:
            buffer, array = self._buffers[key]
            array.reshape(-1).view(np.uint8)[:] = buffer.contents()


def _dispatch(device: Any, launch: Launch, held: _Buffers) -> Any:
    pipeline = device.pipeline(launch.kernel, sorted(launch.constants.items()))
    written = dict(pipeline.slots)
    bindings = []
    for slot, array in launch.buffers.items():
        buffer = held.buffer(array, f"buffer {slot}", written.get(slot, False))
        offset, size = launch.ranges.get(slot, (0, array.nbytes))
        bindings.append((slot, buffer, offset, size, written.get(slot, False)))
    args_slot = launch.args_slot if launch.args_slot is not None else max(launch.buffers, default=-1) + 1
    grid = (*launch.threadgroups, 1, 1)[:3]
    return _core.device.Dispatch(
        pipeline, bindings, args_slot, launch.args, launch.threadgroup_bytes, grid, launch.threads
    )


def to_bfloat16(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """float32 values rounded to bfloat16 (nearest even), as uint16 bits."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)


def from_bfloat16(bits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """float32 values of bfloat16 bits."""
    return (np.asarray(bits).astype(np.uint32) << 16).view(np.float32)
