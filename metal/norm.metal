// norm.metal -- RMS normalization of the rows of the residual: x f32 [rows, size] to out bf16 [rows, size].
#include "lily_common.h"

// out[r, i] = bf16(x[r, i] / sqrt(mean(x[r]^2) + eps) * weight[i]). A threadgroup works on one row.
[[kernel, max_total_threads_per_threadgroup(kRowThreads)]] void rms_norm_rows(
    device const float* x [[buffer(0)]],       // [rows, size]
    device const float* weight [[buffer(1)]],  // [size]
    device bfloat* out [[buffer(2)]],          // [rows, size]
    constant NormArgs& args [[buffer(3)]],
    uint row [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float partial[kRowThreads / kSimdWidth];
  const uint start = row * args.size;
  const bool wide = args.size % 4u == 0u;  // rows are aligned for loads of four
  float squares = 0.0f;
  if (wide) {
    for (uint i = 4u * thread_index; i < args.size; i += 4u * kRowThreads) {
      const float4 values = *(device const float4*)(x + start + i);
      squares += dot(values, values);
    }
  } else {
    for (uint i = thread_index; i < args.size; i += kRowThreads) squares = fma(x[start + i], x[start + i], squares);
  }
  squares = simd_sum(squares);
  if (lane == 0) partial[simdgroup] = squares;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float total = 0.0f;
  UNROLL for (int i = 0; i < kRowThreads / kSimdWidth; i++) total += partial[i];
  const float factor = precise::rsqrt(total / float(args.size) + args.eps);

  if (wide) {
    for (uint i = 4u * thread_index; i < args.size; i += 4u * kRowThreads) {
      const float4 values = *(device const float4*)(x + start + i) * factor * *(device const float4*)(weight + i);
      *(device bfloat4*)(out + start + i) = bfloat4(values);
    }
  } else {
    for (uint i = thread_index; i < args.size; i += kRowThreads) {
      out[start + i] = bfloat(x[start + i] * factor * weight[i]);
    }
  }
}
