"""The GPU engine: options, reports, and entries for tests."""

from collections.abc import Mapping, Sequence

import lily._core
import lily._core.device


class PassReport:
    """Counts of a planned pass; bytes by kind of memory."""

    @property
    def kernels(self) -> int: ...

    @property
    def stages(self) -> int: ...

    @property
    def barriers(self) -> int: ...

    @property
    def waits(self) -> int: ...

    @property
    def bytes_read(self) -> list[int]: ...

    @property
    def bytes_written(self) -> list[int]: ...

    @property
    def scratch_bytes(self) -> int: ...

    @property
    def scratch_bytes_unshared(self) -> int: ...

class StepReport:
    """A decode step or a prompt chunk, planned without weights."""

    @property
    def total(self) -> PassReport: ...

    @property
    def kernels(self) -> dict[str, int]: ...

    @property
    def steps_in_flight(self) -> int: ...

def report_decode(config: lily._core.ModelConfig, formats: Mapping[str, tuple[lily._core.MatrixFormat, int]], options: lily._core.GpuOptions, context: int) -> StepReport: ...

def report_prefill(config: lily._core.ModelConfig, formats: Mapping[str, tuple[lily._core.MatrixFormat, int]], options: lily._core.GpuOptions, context: int, rows: int) -> StepReport: ...

MEMORY_KINDS: tuple = ('weights', 'cache', 'recurrent', 'other')

class Counters:
    """Counts of all passes of a model so far."""

    @property
    def submissions(self) -> int: ...

    @property
    def waits(self) -> int: ...

    @property
    def prefill_seconds(self) -> float: ...

    @property
    def decode_seconds(self) -> float: ...

    @property
    def prefill(self) -> PassReport: ...

    @property
    def decode(self) -> PassReport: ...

def set_options(model: lily._core.Model, options: lily._core.GpuOptions) -> None:
    """
    Other switches from the next pass on: for measuring. No session may be in a call.
    """

def counters(model: lily._core.Model) -> Counters: ...

def copied_weights(model: lily._core.Model) -> tuple[int, int]:
    """(tensors, bytes) that were not aligned in the files."""

def model_on(device: lily._core.device.Device, config: lily._core.ModelConfig, source: lily._core.CheckpointSource, options: lily._core.EngineOptions) -> lily._core.Model:
    """A model on a device that the caller has opened."""

class NullDevice(lily._core.device.Device):
    """A device that computes nothing."""

    def __init__(self) -> None: ...

def plan_operations(operations: Sequence[Sequence[tuple[int, int, int, str]]], scratch_sizes: Sequence[int], concurrent: bool) -> tuple[list[int], list[int], int]: ...

def available_devices() -> list[str]: ...
