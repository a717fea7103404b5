// vocabulary.metal -- a kernel for every part of the Metal vocabulary that the devices share.
#include <metal_atomic>
#include <metal_simdgroup>
#include <metal_simdgroup_matrix>
#include <metal_stdlib>
using namespace metal;

constant uint kCount [[function_constant(3)]];
constant bool kNegate [[function_constant(4)]];
constant int kShift [[function_constant(5)]];
constant float kTable[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
constant constexpr int kOne = 1;

struct Pair {
  float a;
  float b;
  METAL_FUNC float sum() const { return a + b; }
};
namespace helpers {
METAL_FUNC float twice(float x) { return 2.0f * x; }
}

// Simdgroup operations on float: row o of `out` [15, 32] is operation o.
[[kernel]] void simd_float(
    device const float* x [[buffer(0)]],  // [32]
    device float* out [[buffer(1)]],
    uint lane [[thread_index_in_simdgroup]]) {
  const float v = x[lane];
  int o = 0;
  out[32 * o++ + lane] = simd_sum(v);
  out[32 * o++ + lane] = simd_max(v);
  out[32 * o++ + lane] = simd_min(v);
  out[32 * o++ + lane] = simd_product(fma(v, 0.01f, 1.0f));
  out[32 * o++ + lane] = simd_prefix_exclusive_sum(v);
  out[32 * o++ + lane] = simd_prefix_inclusive_sum(v);
  out[32 * o++ + lane] = simd_shuffle_xor(v, ushort(5));
  out[32 * o++ + lane] = simd_shuffle_down(v, ushort(3));
  out[32 * o++ + lane] = simd_shuffle_up(v, ushort(3));
  out[32 * o++ + lane] = simd_broadcast(v, ushort(17));
  out[32 * o++ + lane] = simd_shuffle(v, ushort((lane * 7 + 3) % 32));
  out[32 * o++ + lane] = simd_broadcast_first(v);
  const float4 q = simd_sum(float4(v, 2.0f * v, 3.0f * v, 1.0f));
  out[32 * o++ + lane] = q.x + q.wzyx.y - q.zw.x + q.w;
  out[32 * o++ + lane] = float(simd_shuffle_xor(half(v), ushort(1)));
  out[32 * o++ + lane] = float(as_type<bfloat>(simd_shuffle_xor(as_type<ushort>(bfloat(v)), ushort(2))));
}

// Simdgroup operations on uint: `out` [8, 32].
[[kernel]] void simd_uint(
    device const uint* x [[buffer(0)]],  // [32]
    device uint* out [[buffer(1)]],
    uint lane [[thread_index_in_simdgroup]]) {
  const uint v = x[lane];
  int o = 0;
  out[32 * o++ + lane] = simd_sum(v);
  out[32 * o++ + lane] = simd_or(v);
  out[32 * o++ + lane] = simd_and(v | 0xf0000000u);
  out[32 * o++ + lane] = simd_xor(v);
  out[32 * o++ + lane] = simd_prefix_exclusive_sum(v & 1u);
  out[32 * o++ + lane] = uint(ulong(simd_ballot((v & 1u) != 0u)));
  out[32 * o++ + lane] =
      (simd_any(v == x[9]) ? 1u : 0u) + (simd_all(v < 4000000000u) ? 2u : 0u) + (simd_is_first() ? 4u : 0u);
  out[32 * o++ + lane] = simd_max(v);
}

// Threadgroup memory as an argument and declared here, barriers, atomics, function constants, tables, positions.
[[kernel]] void group(
    device const uint* keys [[buffer(0)]],        // [threadgroups, kCount]
    device atomic_uint* histogram [[buffer(1)]],  // [8]
    device float* out [[buffer(2)]],              // [threadgroups, kCount, 4]
    device atomic_float* total [[buffer(3)]],     // [1]
    device atomic_int* extremes [[buffer(4)]],    // [2], least and greatest
    threadgroup uint* local [[threadgroup(0)]],
    uint2 position [[threadgroup_position_in_grid]],
    uint2 groups [[threadgroups_per_grid]],
    uint2 thread_position [[thread_position_in_grid]],
    uint index [[thread_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  const uint row = position.x + groups.x * position.y;
  threadgroup atomic_uint counter;
  threadgroup float grid[4][40];
  threadgroup Pair pairs[2];
  if (index == 0) {
    atomic_store_explicit(&counter, 0u, memory_order_relaxed);
    pairs[1].a = 1.0f;
    pairs[1].b = 2.5f;
  }
  local[index] = keys[row * kCount + index];
  grid[simdgroup % 4][lane] = float(lane) + 100.0f * float(simdgroup);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const uint other = local[kCount - 1 - index];
  atomic_fetch_add_explicit(&histogram[other & 7u], 1u, memory_order_relaxed);
  if (other & 1u) atomic_fetch_add_explicit(&counter, uint(kOne), memory_order_relaxed);
  atomic_fetch_add_explicit(total, 0.25f, memory_order_relaxed);
  atomic_fetch_min_explicit(&extremes[0], int(other & 1023u), memory_order_relaxed);
  atomic_fetch_max_explicit(&extremes[1], int(other & 1023u), memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);
  const float value = grid[simdgroups - 1 - simdgroup][31 - lane];
  const uint at = (row * kCount + index) * 4;
  out[at] = (kNegate ? -value : value) + kTable[other & 7u] + float(1 << kShift);
  out[at + 1] = float(atomic_load_explicit(&counter, memory_order_relaxed));
  out[at + 2] = helpers::twice(pairs[1].a + pairs[1].b) + float(thread_position.x + 10000u * thread_position.y);
  out[at + 3] = as_type<float>(as_type<uint>(float(simdgroup) + 1.0f) ^ 0x80000000u);
}

// c = a b + 2 I, then (a^T b)^T, then a b from half by elements: `c` [3, 8, 8].
[[kernel]] void matrices(
    device const float* a [[buffer(0)]],   // [8, 8]
    device const float* b [[buffer(1)]],   // [8, 8]
    device const half* ah [[buffer(2)]],   // [8, 8]
    device float* c [[buffer(3)]],
    uint lane [[thread_index_in_simdgroup]]) {
  simdgroup_float8x8 ma;
  simdgroup_float8x8 mb;
  simdgroup_float8x8 mat;
  simdgroup_float8x8 md;
  simdgroup_float8x8 mc(2.0f);
  simdgroup_load(ma, a, 8);
  simdgroup_load(mb, b, 8);
  simdgroup_load(mat, a, 8, ulong2(0, 0), true);
  simdgroup_multiply_accumulate(mc, ma, mb, mc);
  simdgroup_store(mc, c, 8);
  simdgroup_multiply(md, mat, mb);
  simdgroup_store(md, c + 64, 8, ulong2(0, 0), true);
  simdgroup_half8x8 mh;
  simdgroup_load(mh, ah, 8);
  simdgroup_float8x8 me = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  simdgroup_multiply_accumulate(me, mh, mh, me);
  const uint quad = lane / 4;
  const uint row = (quad & 4u) + ((lane / 2) % 4);
  const uint column = (quad & 2u) * 2 + (lane % 2) * 2;
  c[128 + row * 8 + column] = me.thread_elements()[0];
  c[128 + row * 8 + column + 1] = me.thread_elements()[1];
}

// Mathematical functions: row o of `out` [26, count] is function o of x (and y).
[[kernel]] void mathematics(
    device const float* x [[buffer(0)]],  // [count], positive
    device const float* y [[buffer(1)]],
    device float* out [[buffer(2)]],
    uint i [[thread_position_in_grid]],
    uint count [[threads_per_grid]]) {
  const float a = x[i];
  const float b = y[i];
  int o = 0;
  out[count * o++ + i] = exp(b);
  out[count * o++ + i] = precise::exp2(b);
  out[count * o++ + i] = log(a);
  out[count * o++ + i] = fast::log2(a);
  out[count * o++ + i] = sqrt(a);
  out[count * o++ + i] = precise::rsqrt(a);
  out[count * o++ + i] = sin(b);
  out[count * o++ + i] = cos(b);
  out[count * o++ + i] = tanh(b);
  out[count * o++ + i] = pow(a, b);
  out[count * o++ + i] = fma(a, b, 1.0f);
  out[count * o++ + i] = floor(b) + 10.0f * ceil(b);
  out[count * o++ + i] = rint(b) + 10.0f * trunc(b);
  out[count * o++ + i] = clamp(b, -1.0f, 1.0f) + min(a, b) + max(a, b);
  out[count * o++ + i] = float(popcount(as_type<uint>(a)) + 100u * clz(as_type<uint>(a)) + 10000u * ctz(as_type<uint>(a)));
  out[count * o++ + i] = fabs(b) + sign(b) + fract(a);
  const float4 v = float4(a, b, float2(1.0f, 2.0f));
  const float4 w = max(v, float4(0.5f)) * v.wzyx + 1.0f;
  out[count * o++ + i] = dot(w, float4(1.0f, 0.5f, 0.25f, 0.125f));
  out[count * o++ + i] = select(1.0f, 2.0f, b > 0.0f) + (any(v > 3.0f) ? 4.0f : 0.0f);
  out[count * o++ + i] = float(bfloat(b));
  out[count * o++ + i] = float(half(b));
  out[count * o++ + i] = float(half(b) * half(a) + half(1.0f));
  const uint4 u = uint4(as_type<uint>(a)) >> uint4(0u, 8u, 16u, 24u);
  out[count * o++ + i] = dot(float4(u & 255u), float4(1.0f, 2.0f, 3.0f, 4.0f));
  out[count * o++ + i] = float(char4(char(-3)).x) + float(ushort2(ushort(65535)).y);
  out[count * o++ + i] = isnan(NAN * b) && isinf(INFINITY) && !isfinite(-INFINITY) ? 1.0f : 0.0f;
  out[count * o++ + i] = mix(a, b, 0.25f) + copysign(a, b);
  out[count * o++ + i] = float(mulhi(as_type<uint>(a), 0x10000u)) + float(extract_bits(as_type<uint>(a), 23u, 8u));
}

// Template, several template arguments, argument struct, constant buffer.
struct ScaleArgs {
  uint32_t count;
  float factor;
};
template <typename T, int STEP>
[[kernel, max_total_threads_per_threadgroup(32 * STEP)]] void scale(
    device const T* x [[buffer(0)]],
    device T* y [[buffer(1)]],
    constant ScaleArgs& args [[buffer(2)]],
    constant float* offsets [[buffer(3)]],
    uint i [[thread_position_in_grid]]) {
  for (uint at = i * STEP; at < min((i + 1) * STEP, args.count); at++) {
    y[at] = T(float(x[at]) * args.factor + offsets[at % 3]);
  }
}
template [[host_name("scale_bfloat_2")]] [[kernel]] decltype(scale<bfloat, 2>) scale<bfloat, 2>;
template [[host_name("scale_float_1")]] [[kernel]] decltype(scale<float, 1>) scale<float, 1>;
