"""The translator: what it refuses, with file and line, and what it reads off a source."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the translator preprocesses with g++")

HEAD = """#include <metal_stdlib>
using namespace metal;
struct Args {
  uint32_t n;
};
"""
KERNEL = """[[kernel]] void k(device float* x [[buffer(0)]], device const float* r [[buffer(1)]],
    constant Args& a [[buffer(2)]], uint t [[thread_index_in_threadgroup]]) {
  threadgroup float tg[32];
%s
}
"""


def translate(tmp_path: Path, source: str) -> tuple[str, Any]:
    from msl.preprocess import preprocess
    from msl.sim_backend import SimBackend
    from msl.translate import translate

    path = tmp_path / "sample.metal"
    path.write_text(source)
    return translate(preprocess(path, "g++", [], [], 310), SimBackend("sample"))


def in_kernel(body: str, before: str = "") -> str:
    return HEAD + before + KERNEL % body


REFUSED_IN_KERNEL = [
    ("double d = 1.0f; x[t] = float(d);", "no double"),
    ("x[t] = r[t] * 0.5;", "suffix f"),
    ("x[t] = float(0.5h);", "suffix f"),
    ("x[t] = std::max(r[t], 0.0f);", "no C++ standard library"),
    ("auto f = [&](float v) { return v + 1.0f; }; x[t] = f(r[t]);", "no lambdas"),
    ("thread float* p = new float; x[t] = *p;", "no new and delete"),
    ("goto done; done: x[t] = 0.0f;", "no goto"),
    ("float (*f)(float) = 0; x[t] = f(r[t]);", "no function pointers"),
    ("static float v = 0.0f; x[t] = v;", "no static variables"),
    ("float* p = 0; x[t] = *p;", "needs an address space"),
    ("x[t] = (*(float4*)(x + t)).x;", "must name the address space"),
    ("threadgroup float a[4], b[4]; x[t] = 0.0f;", "one threadgroup variable a statement"),
    ("threadgroup float a = 1.0f; x[t] = a;", "without an initialiser"),
    ("if constexpr (sizeof(float) == 4) { x[t] = 0.0f; }", "C++14"),
    ("try { x[t] = 0.0f; } catch (...) {}", "no exceptions"),
]


@pytest.mark.parametrize(("body", "reason"), REFUSED_IN_KERNEL)
def test_statements_outside_the_subset_are_refused_with_their_line(tmp_path: Path, body: str, reason: str) -> None:
    from msl.tokens import SubsetError

    source = in_kernel("  x[t] = 1.0f;\n  " + body)
    line = source[: source.index(body)].count("\n") + 1
    with pytest.raises(SubsetError) as raised:
        translate(tmp_path, source)
    assert reason in str(raised.value)
    assert f"sample.metal:{line}: error:" in str(raised.value)


REFUSED_BEFORE_KERNEL = [
    ("METAL_FUNC float take(float* p) { return *p; }\n", "needs an address space"),
    ("METAL_FUNC void put(float& p) { p = 1.0f; }\n", "needs an address space"),
    ("template <typename T> METAL_FUNC T first(T* p) { return *p; }\n", "needs an address space"),
    ("METAL_FUNC float h(uint i) { threadgroup float z[4]; z[i] = 1.0f; return z[0]; }\n", "in kernel functions"),
    ("float state = 1.0f;\n", "must be in the constant address space"),
    ("METAL_FUNC int f(int n) { return n < 2 ? 1 : n * f(n - 1); }\n", "recursive"),
    (
        "int g(int n);\nMETAL_FUNC int f(int n) { return g(n); }\nMETAL_FUNC int g(int n) { return f(n); }\n",
        "recursive",
    ),
    ("constant float kHalf [[function_constant(0)]];\n", "is one of bool, int, uint"),
    ("constant int kA [[function_constant(1)]];\nconstant int kB [[function_constant(1)]];\n", "used twice"),
    ("constant int kA [[function_constant(32)]];\n", "0 to 31"),
]


@pytest.mark.parametrize(("before", "reason"), REFUSED_BEFORE_KERNEL)
def test_declarations_outside_the_subset_are_refused(tmp_path: Path, before: str, reason: str) -> None:
    from msl.tokens import SubsetError

    with pytest.raises(SubsetError, match="error:") as raised:
        translate(tmp_path, in_kernel("  x[t] = 1.0f;", before))
    assert reason in str(raised.value)


REFUSED_SIGNATURES = [
    ("device float* x [[buffer(0)]], device float* y [[buffer(0)]]", "share buffer index 0"),
    ("device float* x", "needs an explicit [[buffer(n)]]"),
    ("device float* x [[buffer(31)]]", "0 to 30"),
    ("device float* x [[buffer(kSlot)]]", "must be a plain number"),
    ("float* x [[buffer(0)]]", "address space"),
    ("thread float* x [[buffer(0)]]", "no thread pointers"),
    ("device Args& x [[buffer(0)]]", "a device buffer is a pointer"),
    ("const constant Args& x [[buffer(0)]]", "without 'const'"),
    ("threadgroup float* x [[threadgroup(1)]]", "0 to 0 are allowed"),
    ("uint t", "unsupported attribute"),
    ("uint t [[stage_in]]", "unsupported attribute"),
    ("ushort t [[thread_index_in_simdgroup]]", "must be a uint"),
    ("uint2 t [[thread_position_in_grid]], uint g [[threadgroup_position_in_grid]]", "same number of components"),
    ("constant Args& a [[buffer(0)]], constant Args& b [[buffer(1)]]", "at most one bytes parameter"),
    ("constant Unknown& a [[buffer(0)]]", "not defined at file scope"),
]


@pytest.mark.parametrize(("parameters", "reason"), REFUSED_SIGNATURES)
def test_signatures_outside_the_subset_are_refused(tmp_path: Path, parameters: str, reason: str) -> None:
    from msl.tokens import SubsetError

    with pytest.raises(SubsetError, match="error:") as raised:
        translate(tmp_path, f"{HEAD}[[kernel]] void k({parameters}) {{ }}\n")
    assert reason in str(raised.value)


@pytest.mark.parametrize("field", ["half h;", "bool b;", "uint64_t n;", "float4 v;", "device float* p;"])
def test_argument_structs_hold_four_byte_scalars_only(tmp_path: Path, field: str) -> None:
    from msl.tokens import SubsetError

    struct = f"struct Wrong {{\n  uint32_t n;\n  {field}\n}};\n"
    with pytest.raises(SubsetError, match=r"sample\.metal:\d+: error: 'Wrong': argument structs hold"):
        translate(tmp_path, f"{HEAD}{struct}[[kernel]] void k(constant Wrong& a [[buffer(0)]]) {{ }}\n")


def test_instantiations_must_name_a_kernel_and_all_arguments(tmp_path: Path) -> None:
    from msl.tokens import SubsetError

    template = HEAD + "template <typename T, int N>\n[[kernel]] void k(device T* x [[buffer(0)]]) { x[N] = T(0.0f); }\n"
    good = 'template [[host_name("k_f")]] [[kernel]] decltype(k<float, 2>) k<float, 2>;\n'
    _, module = translate(tmp_path, template + good)
    assert [entry.host_name for entry in module.entries] == ["k_f"]
    for bad, reason in [
        (good + good, "a second kernel of the host name 'k_f'"),
        ('template [[host_name("k_f")]] [[kernel]] decltype(k<float>) k<float>;\n', "takes 2 template arguments"),
        ('template [[host_name("k_f")]] [[kernel]] decltype(m<float>) m<float>;\n', "not a kernel defined above"),
        ("template [[kernel]] decltype(k<float, 2>) k<float, 2>;\n", "host_name"),
    ]:
        with pytest.raises(SubsetError, match=reason):
            translate(tmp_path, template + bad)


def test_reflection_tells_what_a_host_must_bind(tmp_path: Path) -> None:
    from msl.reflection import reflect

    source = (
        HEAD
        + """
enum Indices {
  kFirstIndex = 4,
  kOtherIndex = 7,
};
constant bool kFirst [[function_constant(kFirstIndex)]];
constant int kOther [[function_constant(kOtherIndex)]];
constant int kUnused [[function_constant(9)]];
METAL_FUNC float helper(float v) { return kOther > 0 ? v : -v; }
template <typename T, int N>
[[kernel, max_total_threads_per_threadgroup(N * 32)]] void scale(
    device const T* x [[buffer(3)]], device T* y [[buffer(1)]], constant Args& args [[buffer(2)]],
    constant float* table [[buffer(0)]], threadgroup float* scratch [[threadgroup(0)]],
    uint i [[thread_position_in_grid]]) {
  scratch[0] = 0.0f;
  if (kFirst) y[i] = T(helper(float(x[i])) * table[args.n]);
}
template [[host_name("scale_float")]] [[kernel]] decltype(scale<float, 2>) scale<float, 2>;
[[kernel]] void plain(device float* x [[buffer(0)]], uint i [[thread_position_in_grid]]) { x[i] = 0.0f; }
"""
    )
    _, module = translate(tmp_path, source)
    kernels = reflect(module)["kernels"]
    assert set(kernels) == {"scale_float", "plain"}
    scale = kernels["scale_float"]
    assert {slot["index"]: slot["written"] for slot in scale["buffers"]} == {3: False, 1: True, 0: False}
    assert scale["bytes"] == [{"index": 2, "name": "args", "type": "Args"}]
    assert scale["threadgroup"] == [0]
    assert scale["max_total_threads"] == "N * 32"
    assert scale["template_arguments"] == "float , 2"
    assert [(one["index"], one["name"]) for one in scale["function_constants"]] == [(4, "kFirst"), (7, "kOther")]
    assert kernels["plain"]["function_constants"] == []


def test_line_markers_keep_the_place_of_every_statement(tmp_path: Path) -> None:
    marked = "x[t] = r[t + 17u];"
    source = in_kernel(f"  threadgroup float more[3]\n    [4];\n  more[0][0] = 1.0f;\n  {marked}")
    wanted = source[: source.index(marked)].count("\n") + 1
    text, _ = translate(tmp_path, source)
    line, file = 0, ""
    for row in text.split("\n"):
        if row.startswith("# "):
            _, number, name = row.split(" ")[:3]
            line, file = int(number) - 1, name
        elif marked in row:
            assert file.endswith('sample.metal"')
            assert line == wanted
            return
        line += 1
    pytest.fail("the statement is gone")
