"""A device with tensor operations gets the kernels that use them, for every tile that has one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import lily
from lily import _core, _test_doubles
from lily.checkpoint import read_checkpoint
from lily.model.native import native_config, native_source


def launched_products(folder: Path, tensor: bool, rows: int, tile_rows: int) -> set[str]:
    """Names of the product kernels of a prompt."""
    names: set[str] = set()

    def run_stage(launches: list[Any]) -> None:
        for name, _, slots, *_ in launches:
            names.add(name)
            for data, written in slots.values():
                if written:
                    data[:] = 0

    checkpoint = read_checkpoint(folder)
    device = _test_doubles.CallbackDevice(run_stage)
    device.tensor_gemm = tensor
    options = _core.EngineOptions()
    options.backend = "test"
    options.gpu.tile_rows = tile_rows
    native = _core.gpu.model_on(device, native_config(checkpoint.config), native_source(checkpoint.source), options)
    with lily.Model(checkpoint, native) as model, model.session() as session:
        session.prefill([1] * rows)
    return {name for name in names if name.startswith("gemm_")}


@pytest.mark.parametrize(
    ("rows", "tile_rows", "plain", "tensor"),
    [
        (9, 16, {"gemm_affine_m16"}, {"gemm_affine_m16"}),
        (50, 32, {"gemm_affine_m32"}, {"gemm_affine_tensor_m32"}),
        (120, 64, {"gemm_affine_m64"}, {"gemm_affine_tensor_m64"}),
        (
            120,
            16,
            {"gemm_affine_m16", "gemm_affine_m64"},
            {"gemm_affine_m16", "gemm_affine_tensor_m64"},
        ),
    ],
)
def test_kernels_are_substituted(
    small_checkpoint: Path, rows: int, tile_rows: int, plain: set[str], tensor: set[str]
) -> None:
    # The last layer finishes its last row only, which is a product of its own.
    one_row = {"gemm_affine_m16"}
    assert launched_products(small_checkpoint, False, rows, tile_rows) - one_row == plain - one_row
    assert launched_products(small_checkpoint, True, rows, tile_rows) - one_row == tensor - one_row
