"""A device that runs passes when somebody waits for them, on kernels of the sim device: for tests of steps in flight.

The CPU would otherwise be done with a pass before submit() returns, and what the host changes too early, or reads too
late, would go unnoticed. It also logs submissions and waits, and fails on demand.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lily
from device_runner import Launch, run_stages, sim
from lily import _core, _test_doubles
from lily.checkpoint import read_checkpoint, resolve_source
from lily.model.native import native_config, native_source


def run_stage(launches: list[Any]) -> None:
    """The launches of one stage, on buffers of NumPy's."""
    stage = []
    for kernel, constants, slots, arguments, argument_slot, grid, threads in launches:
        buffers = {slot: view for slot, (view, _) in slots.items()}
        # Slots that repeat a binding must be one buffer.
        places = {(view.ctypes.data, view.size): view for view in buffers.values()}
        buffers = {slot: places[view.ctypes.data, view.size] for slot, view in buffers.items()}
        stage.append(Launch(kernel, buffers, grid, threads, arguments, argument_slot, constants))
    # One after another: launches of a stage may read overlapping parts of one buffer, which run_stages would copy.
    for launch in stage:
        run_stages(sim(), [[launch]])


def deferred_device() -> Any:
    return _test_doubles.CallbackDevice(run_stage)


def model_on(device: Any, source: str | Path, *, options: lily.GpuOptions | None = None, **engine: Any) -> lily.Model:
    """A model on a device of the caller's; `engine` sets fields of EngineOptions."""
    checkpoint = read_checkpoint(resolve_source(source))
    engine_options = _core.EngineOptions()
    engine_options.backend = "test"
    engine_options.gpu = (options or lily.GpuOptions()).to_core()
    for name, value in engine.items():
        setattr(engine_options, name, value)
    native = _core.gpu.model_on(
        device, native_config(checkpoint.config), native_source(checkpoint.source), engine_options
    )
    return lily.Model(checkpoint, native)
