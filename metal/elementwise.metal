// elementwise.metal -- SwiGLU of rows, and words filled and copied.
//
// All operands are flat: gate, up and out bf16 [count] (rows of [rows, intermediate] one after the other), or words
// [count]. A thread does four neighbours, the last one fewer.
#include "lily_common.h"

[[kernel, max_total_threads_per_threadgroup(kElementThreads)]] void silu_multiply_rows(
    device const bfloat* gate [[buffer(0)]],  // [count]
    device const bfloat* up [[buffer(1)]],    // [count]
    device bfloat* out [[buffer(2)]],         // [count]: silu(gate) * up
    constant ElementArgs& args [[buffer(3)]],
    uint position [[thread_position_in_grid]]) {
  const uint first = 4 * position;
  if (first + 4 <= args.count) {
    const float4 gates = float4(*(device const bfloat4*)(gate + first));
    const float4 ups = float4(*(device const bfloat4*)(up + first));
    float4 products;
    UNROLL for (int i = 0; i < 4; i++) products[i] = silu(gates[i]) * ups[i];
    *(device bfloat4*)(out + first) = bfloat4(products);
  } else {
    for (uint i = first; i < args.count; i++) out[i] = bfloat(silu(float(gate[i])) * float(up[i]));
  }
}

[[kernel, max_total_threads_per_threadgroup(kElementThreads)]] void fill_zero(
    device uint* out [[buffer(0)]],  // [count]
    constant ElementArgs& args [[buffer(1)]],
    uint position [[thread_position_in_grid]]) {
  const uint first = 4 * position;
  if (first + 4 <= args.count) {
    *(device uint4*)(out + first) = uint4(0);
  } else {
    for (uint i = first; i < args.count; i++) out[i] = 0;
  }
}

[[kernel, max_total_threads_per_threadgroup(kElementThreads)]] void copy_words(
    device const uint* from [[buffer(0)]],  // [count]
    device uint* to [[buffer(1)]],          // [count]
    constant ElementArgs& args [[buffer(2)]],
    uint position [[thread_position_in_grid]]) {
  const uint first = 4 * position;
  if (first + 4 <= args.count) {
    *(device uint4*)(to + first) = *(device const uint4*)(from + first);
  } else {
    for (uint i = first; i < args.count; i++) to[i] = from[i];
  }
}
