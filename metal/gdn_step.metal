// gdn_step.metal -- one token of Gated DeltaNet with its gated norm (decode), and the gated norm alone.
//
// The norm: out = x / sqrt(mean(x^2) + eps) * weight * silu(z) over the value_dim values of a head.
#include "lily_gdn.h"

// Elements i to i + 3 of `size`; zeros past the end. Rows of other lengths than multiples of four are unaligned.
METAL_FUNC float4 load_four(device const float* x, uint i, uint size) {
  if (size % 4 == 0) return *(device const float4*)(x + i);
  return float4(x[i], i + 1 < size ? x[i + 1] : 0.0f, i + 2 < size ? x[i + 2] : 0.0f, i + 3 < size ? x[i + 3] : 0.0f);
}

METAL_FUNC float4 load_four(device const bfloat* x, uint i, uint size) {
  if (size % 4 == 0) return widen(*(device const uint2*)(x + i));
  return float4(float(x[i]), i + 1 < size ? float(x[i + 1]) : 0.0f, i + 2 < size ? float(x[i + 2]) : 0.0f,
                i + 3 < size ? float(x[i + 3]) : 0.0f);
}

template <typename T>
[[kernel, max_total_threads_per_threadgroup(kSimdWidth)]] void gdn_norm(
    device const float* x [[buffer(0)]],          // [tokens, value_heads, value_dim]
    device const T* z [[buffer(1)]],              // [tokens, value_heads, value_dim]
    device const float* weight [[buffer(2)]],     // [value_dim]
    device bfloat* out [[buffer(3)]],             // [tokens, value_heads, value_dim]
    constant GdnArgs& args [[buffer(4)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  const uint size = args.value_dim;
  const uint row = (group.y * args.value_heads + group.x) * size;
  float squares = 0.0f;
  for (uint i = 4 * lane; i < size; i += 4 * kSimdWidth) {
    const float4 values = load_four(x + row, i, size);
    squares += dot(values, values);
  }
  const float scale = precise::rsqrt(simd_sum(squares) / float(size) + args.eps);
  for (uint i = 4 * lane; i < size; i += 4 * kSimdWidth) {
    const float4 gates = load_four(z + row, i, size);
    const float4 result = load_four(x + row, i, size) * scale * load_four(weight, i, size) *
                          float4(silu(gates.x), silu(gates.y), silu(gates.z), silu(gates.w));
    if (size % 4 == 0) {
      *(device bfloat4*)(out + row + i) = bfloat4(result);
    } else {
      UNROLL for (uint j = 0; j < 4; j++) {
        if (i + j < size) out[row + i + j] = bfloat(result[j]);
      }
    }
  }
}

template [[host_name("gdn_norm")]] [[kernel]] decltype(gdn_norm<bfloat>) gdn_norm<bfloat>;
template [[host_name("gdn_norm_f32z")]] [[kernel]] decltype(gdn_norm<float>) gdn_norm<float>;

constant constexpr int kStepLanes = 8;     // of a row of the state: 128 bytes of it in one read
constant constexpr int kStepRowsAhead = 2;  // rows of a lane that are read together
constant constexpr uint kStepSimdgroups = kStepThreads / kSimdWidth;
constant constexpr uint kStepRows = kStepThreads / kStepLanes;  // of a threadgroup at once

[[kernel, max_total_threads_per_threadgroup(kStepThreads)]] void gdn_step(
    device const bfloat* query [[buffer(0)]],     // [key_heads, key_dim]
    device const bfloat* key [[buffer(1)]],       // [key_heads, key_dim]
    device const bfloat* value [[buffer(2)]],     // [value_heads, value_dim]
    device const float* decay [[buffer(3)]],      // [value_heads]
    device const float* beta [[buffer(4)]],       // [value_heads]
    device const float* state [[buffer(5)]],      // [value_heads, value_dim, key_dim]
    device float* next_state [[buffer(6)]],       // [value_heads, value_dim, key_dim]
    device const float* z [[buffer(7)]],          // [value_heads, value_dim]
    device const float* weight [[buffer(8)]],     // [value_dim]
    device bfloat* out [[buffer(9)]],             // [value_heads, value_dim]
    constant GdnArgs& args [[buffer(10)]],
    uint head [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simd_lane [[thread_index_in_simdgroup]]) {
  threadgroup float reads[kStepMaxValueDim];
  threadgroup float partial[kStepSimdgroups];
  const uint lane = simd_lane % kStepLanes;
  const uint key_at = head * args.key_heads / args.value_heads * uint(kKeyDim);
  const uint value_at = head * args.value_dim;
  KeyRow<kStepLanes> query_row;
  KeyRow<kStepLanes> key_row;
  query_row.load(query + key_at, lane);
  key_row.load(key + key_at, lane);
  const float head_decay = decay[head];
  const float head_beta = beta[head];

  float squares = 0.0f;
  for (uint first = 0; first < args.value_dim; first += kStepRows * kStepRowsAhead) {
    StateRow<kStepLanes> rows[kStepRowsAhead];
    float values[kStepRowsAhead];
    UNROLL for (int i = 0; i < kStepRowsAhead; i++) {
      const uint row = min(first + uint(i) * kStepRows + thread_index / kStepLanes, args.value_dim - 1);
      rows[i].load(state + (value_at + row) * uint(kKeyDim), lane);
      values[i] = float(value[value_at + row]);
    }
    UNROLL for (int i = 0; i < kStepRowsAhead; i++) {
      const uint row = first + uint(i) * kStepRows + thread_index / kStepLanes;
      const float read = sum_row<kStepLanes>(
          delta_step(rows[i], query_row, key_row, values[i], head_decay, head_beta));
      if (row < args.value_dim) rows[i].store(next_state + (value_at + row) * uint(kKeyDim), lane);
      if (row < args.value_dim && lane == 0) {
        reads[row] = read;
        squares += read * read;
      }
    }
  }
  squares = simd_sum(squares);
  if (simd_lane == 0) partial[simdgroup] = squares;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float total = 0.0f;
  UNROLL for (uint i = 0; i < kStepSimdgroups; i++) total += partial[i];
  const float scale = precise::rsqrt(total / float(args.value_dim) + args.eps);
  for (uint i = thread_index; i < args.value_dim; i += kStepThreads) {
    out[value_at + i] = bfloat(reads[i] * scale * weight[i] * silu(z[value_at + i]));
  }
}
