"""The lint: clang with real address spaces refuses what plain C++ lets pass; good kernels are clean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
METAL = HERE.parents[1] / "metal"

SOURCE = """#include <metal_stdlib>
using namespace metal;
struct Args {
  uint32_t n;
};
%s[[kernel]] void k(device float* x [[buffer(0)]], device const float* r [[buffer(1)]],
    constant Args& a [[buffer(2)]], uint t [[thread_index_in_threadgroup]]) {
  threadgroup float tg[32];
  tg[t] = 0.0f;
  %s
}
"""

# What is wrong, text before the kernel, statement in it.
WRONG = [
    ("device pointer to a thread parameter", "METAL_FUNC float take(thread float* p) { return *p; }\n",
     "x[t] = take(x);"),
    ("threadgroup array to a device parameter", "METAL_FUNC float take(device const float* p) { return *p; }\n",
     "x[t] = take(tg);"),
    ("device pointer to a threadgroup pointer", "", "threadgroup float* p = x; p[0] = 1.0f;"),
    ("cast from device to threadgroup", "", "x[t] = *(threadgroup float*)x;"),
    ("write through constant", "", "a.n = 3; x[t] = 0.0f;"),
    ("write through a device const pointer", "", "device float* p = r; p[t] = 0.0f;"),
    ("method of a device object", "struct P { float v; METAL_FUNC float get() const { return v; } };\n",
     "x[t] = ((device P*)x)->get();"),
    ("function that Metal lacks", "", "x[t] = expm1(r[t]);"),
    ("function of the C library", "", "x[t] = log1pf(r[t]);"),
    ("matrix and pointer of different types", "",
     "simdgroup_matrix<half, 8, 8> m; simdgroup_load(m, x, 8); x[t] = float(m.thread_elements()[0]);"),
    ("variable-length array", "", "float v[a.n]; v[0] = 1.0f; x[t] = v[0];"),
    ("vectors of different types", "", "uint4 u = uint4(1u); int4 i = int4(2); x[t] = float((u + i).x);"),
    ("implicit narrowing of a vector", "", "half4 h = float4(1.0f); x[t] = float(h.x);"),
    ("address of a vector's element", "", "float4 v = float4(1.0f); thread float* p = &v.x; x[t] = p[1];"),
    ("too few arguments", "", "x[t] = fma(r[t], 2.0f);"),
    ("unknown name", "", "x[t] = threadgroup_size;"),
    ("atomic on plain memory", "", "x[t] = float(atomic_load_explicit(x, memory_order_relaxed));"),
]  # fmt: skip


@pytest.fixture(scope="module")
def lint() -> Any:
    from msl.lint import find_clang, lint

    if find_clang() is None:
        pytest.skip("no clang 16 or later")
    return lint


def check(lint: Any, folder: Path, before: str, statement: str) -> list[str]:
    path = folder / "sample.metal"
    path.write_text(SOURCE % (before, statement))
    return list(lint([path], [METAL]))


@pytest.mark.parametrize(("before", "statement"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_wrong_kernels_are_found_at_their_line(lint: Any, tmp_path: Path, before: str, statement: str) -> None:
    findings = check(lint, tmp_path, before, statement)
    source = SOURCE % (before, statement)
    line = source[: source.index(statement)].count("\n") + 1
    assert any(f"sample.metal:{line}:" in finding for finding in findings), findings


def test_a_right_kernel_is_clean(lint: Any, tmp_path: Path) -> None:
    before = (
        "struct P { float v; METAL_FUNC float get() const { return v; } };\n"
        "METAL_FUNC float take(threadgroup const float* p) { return *p; }\n"
    )
    statement = (
        "P p; p.v = r[t]; device const float4* v = (device const float4*)r;\n"
        "  x[t] = take(tg) + p.get() + v[0].y + dot(float4(v[1].xy, 1.0f, 2.0f), v[2].wzyx) + float(a.n);"
    )
    assert check(lint, tmp_path, before, statement) == []


def test_the_kernels_are_clean(lint: Any) -> None:
    sources = [path for path in sorted(METAL.glob("*.metal")) if not path.stem.endswith("_tensor")]
    sources += sorted((HERE / "kernels").glob("*.metal"))
    assert lint(sources, [METAL]) == []
