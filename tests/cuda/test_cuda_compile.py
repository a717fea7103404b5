"""Every kernel compiles for Hopper with NVRTC, and the hot ones keep their arrays in registers. Needs no GPU."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lily import _core
from lily.errors import BackendError

# Values of the function constants, by name: the model's own, then others that lead to other code.
DEFAULTS = {
    "kBits": 4, "kGroupSize": 64, "kHeadDim": 256, "kKeyDim": 128, "kVectorType": 1, "kColumnSharing": 0,
    "kAccumulate": 0, "kGrouped": 0, "kQueryHeads": 4, "kCoalesced": 1,
}  # fmt: skip
VARIANTS = [
    {},
    {"kBits": 8, "kGroupSize": 32, "kVectorType": 0, "kColumnSharing": 1, "kCoalesced": 0},
    {"kBits": 16, "kColumnSharing": 1, "kGrouped": 1, "kQueryHeads": 1},
    {"kBits": 8, "kColumnSharing": 1},
    {"kVectorType": 0, "kColumnSharing": 1, "kAccumulate": 1, "kHeadDim": 64, "kKeyDim": 64},
]
WITHOUT_D6 = (7, 1)  # kQueryHeads: a form for comparison, which spills a few bytes
# Kernels that read most of the bytes, or do most of the sums.
HOT = re.compile(
    r"gemv_segments|expert_|gemm_affine_|gdn_step|gdn_scan$|attention_prefill|attention_decode|tile_product"
)


@pytest.fixture(scope="module")
def compiler() -> Any:
    if not hasattr(_core.device, "CudaCompiler"):
        pytest.skip("this build has no cuda device")
    pytest.importorskip("nvidia", reason="NVRTC comes with the package nvidia-cuda-nvrtc")
    return _core.device.CudaCompiler()


def _jobs(compiler: Any) -> list[tuple[str, tuple[tuple[int, int], ...]]]:
    """Each kernel with each set of the constants that it uses, once."""
    jobs = {}
    for kernel in compiler.kernel_names():
        for variant in VARIANTS:
            values = DEFAULTS | variant
            jobs[kernel, tuple((index, values[name]) for index, name in compiler.constants(kernel))] = None
    return list(jobs)


def test_every_kernel_compiles_for_hopper(compiler: Any) -> None:
    with ThreadPoolExecutor(2) as pool:
        reports = list(pool.map(lambda job: compiler.compile(*job), _jobs(compiler)))
    assert len(reports) > 30
    problems = []
    for (kernel, constants), (cubin, log) in zip(_jobs(compiler), reports, strict=True):
        assert cubin[:4] == b"\x7fELF"
        stack = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log)
        assert stack is not None, log
        if any(int(count) for count in stack.groups()) and HOT.match(kernel) and WITHOUT_D6 not in constants:
            problems.append(f"{kernel} {dict(constants)}: {stack[0]}")
    assert not problems, "\n".join(problems)


def test_errors_name_kernel_file_and_line(compiler: Any, tmp_path: Path) -> None:
    folder = tmp_path / "kernels"
    folder.mkdir()
    (folder / "lily_msl.h").write_text("#define LILY_FN __device__ __forceinline__\n")
    (folder / "wrong.cu").write_text(
        '#include "lily_msl.h"\n#line 12 "wrong.metal"\nextern "C" __global__ void wrong(int* x) { *x = unknown; }\n'
    )
    (folder / "index.txt").write_text("wrong\twrong\t0\t32\t0\t0w\t\n")
    wrong = _core.device.CudaCompiler(library=str(folder))
    with pytest.raises(BackendError, match=r"(?s)kernel wrong does not compile.*wrong\.metal\(12\).*unknown"):
        wrong.compile("wrong", [])


def test_a_constant_without_a_value_is_refused(compiler: Any) -> None:
    with pytest.raises(BackendError, match=r"kBits.*has no value"):
        compiler.compile("gemv_segments", [(1, 64), (4, 1), (5, 0)])


def test_an_unknown_kernel_is_refused(compiler: Any) -> None:
    with pytest.raises(BackendError, match="there is no kernel 'nothing'"):
        compiler.compile("nothing", [])
