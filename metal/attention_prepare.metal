// attention_prepare.metal -- from the projections of rows of tokens to queries and cached keys and values: RMS norm of
// each head, rotary positions, scale, cache write. One simdgroup works on one head of one row.
//
// Projected query [rows, heads, 2, head_dim] {query, gate}, key and value [rows, kv_heads, head_dim]; query out bf16
// [rows, heads, head_dim]; cache keys and values bf16 [kv_heads, capacity, head_dim]. A lane holds 4 neighbouring
// dimensions, and the 4 that lie 128 farther.
#include "lily_common.h"

constant uint kHeadDim [[function_constant(kHeadDimIndex)]];

constant constexpr uint kQuads = 2;  // of a lane: head_dim is at most 256

template <typename T>
METAL_FUNC float4 load_quad(device const T* x) {
  const vec<T, 4> quad = *(device const vec<T, 4>*)x;
  return float4(float(quad.x), float(quad.y), float(quad.z), float(quad.w));
}

// cos and sin of position * frequency, as if the product had not been rounded: at 200,000 its rounding is 0.01 radians.
METAL_FUNC float2 rotation(int position, float frequency) {
  const float angle = float(position) * frequency;
  const float error = fma(float(position), frequency, -angle);
  const float cosine = precise::cos(angle);
  const float sine = precise::sin(angle);
  return float2(fma(-sine, error, cosine), fma(cosine, error, sine));
}

// Dimension d of the normalised head x, rotated; dimension i < rotary_dim / 2 turns with i + rotary_dim / 2.
template <typename T>
METAL_FUNC float rotated(device const T* x, device const float* weight, device const float* frequencies, uint d,
                         uint rotary_half, float inverse_rms, int position) {
  const bool is_first = d < rotary_half;
  const uint other = is_first ? d + rotary_half : d - rotary_half;
  const float own = float(x[d]) * inverse_rms * weight[d];
  const float paired = float(x[other]) * inverse_rms * weight[other];
  const float2 turn = rotation(position, frequencies[is_first ? d : other]);
  return fma(own, turn.x, is_first ? -paired * turn.y : paired * turn.y);
}

// One head: out = scale * rotate(rms_norm(x) * weight).
template <typename T>
METAL_FUNC void prepare_head(device const T* x, device const float* weight, device const float* frequencies,
                             device bfloat* out, int position, uint rotary_dim, float eps, float scale, uint lane) {
  float4 values[kQuads];
  float squares = 0.0f;
  UNROLL for (uint i = 0; i < kQuads; i++) {
    const uint first = 4 * (lane + kSimdWidth * i);
    values[i] = first < kHeadDim ? load_quad<T>(x + first) : float4(0.0f);
    squares += dot(values[i], values[i]);
  }
  const float inverse_rms = precise::rsqrt(simd_sum(squares) / float(kHeadDim) + eps);
  UNROLL for (uint i = 0; i < kQuads; i++) {
    const uint first = 4 * (lane + kSimdWidth * i);
    if (first < kHeadDim) {
      values[i] = values[i] * inverse_rms * *(device const float4*)(weight + first);
      for (uint j = 0; j < 4 && first + j < rotary_dim; j++) {
        values[i][j] = rotated(x, weight, frequencies, first + j, rotary_dim / 2, inverse_rms, position);
      }
      *(device bfloat4*)(out + first) = bfloat4(values[i] * scale);
    }
  }
}

// One head as it is, in the cache's type.
template <typename T>
METAL_FUNC void copy_head(device const T* x, device bfloat* out, uint head_dim, uint lane) {
  for (uint first = 4 * lane; first < head_dim; first += 4 * kSimdWidth) {
    *(device bfloat4*)(out + first) = bfloat4(load_quad<T>(x + first));
  }
}

// Where the cache holds a position of a KV head, in elements.
METAL_FUNC ulong cache_offset(uint kv_head, uint capacity, uint position, uint head_dim) {
  return (ulong(kv_head) * capacity + position) * head_dim;
}

template <typename T>
[[kernel, max_total_threads_per_threadgroup(kSimdWidth)]] void attention_prepare(
    device const T* projected_query [[buffer(0)]],
    device const T* key [[buffer(1)]],
    device const T* value [[buffer(2)]],
    device const float* q_norm [[buffer(3)]],       // [head_dim]
    device const float* k_norm [[buffer(4)]],       // [head_dim]
    device const float* frequencies [[buffer(5)]],  // [rotary_dim / 2], radians a position
    device const int* position [[buffer(6)]],       // of row 0
    device bfloat* query [[buffer(7)]],
    device bfloat* cache_keys [[buffer(8)]],
    device bfloat* cache_values [[buffer(9)]],
    constant AttentionArgs& args [[buffer(10)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  const uint row = group.y;
  const uint at = uint(*position) + row;
  if (group.x < args.heads) {
    const ulong head = ulong(row) * args.heads + group.x;
    prepare_head(projected_query + head * 2 * kHeadDim, q_norm, frequencies, query + head * kHeadDim, int(at),
                 args.rotary_dim, args.eps, precise::rsqrt(float(kHeadDim)), lane);
    return;
  }
  const uint kv_head = (group.x - args.heads) % args.kv_heads;
  const ulong from = (ulong(row) * args.kv_heads + kv_head) * kHeadDim;
  const ulong to = cache_offset(kv_head, args.capacity, at, kHeadDim);
  if (group.x < args.heads + args.kv_heads) {
    prepare_head(key + from, k_norm, frequencies, cache_keys + to, int(at), args.rotary_dim, args.eps, 1.0f, lane);
  } else {
    copy_head(value + from, cache_values + to, kHeadDim, lane);
  }
}

template <typename T>
[[kernel, max_total_threads_per_threadgroup(kSimdWidth)]] void attention_norm_rope(
    device const T* projected_query [[buffer(0)]],
    device const T* key [[buffer(1)]],
    device const float* q_norm [[buffer(3)]],
    device const float* k_norm [[buffer(4)]],
    device const float* frequencies [[buffer(5)]],
    device const int* position [[buffer(6)]],
    device bfloat* query [[buffer(7)]],
    device bfloat* rotated_key [[buffer(8)]],  // [rows, kv_heads, head_dim]
    constant AttentionArgs& args [[buffer(10)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  const int at = *position + int(group.y);
  if (group.x < args.heads) {
    const ulong head = ulong(group.y) * args.heads + group.x;
    prepare_head(projected_query + head * 2 * kHeadDim, q_norm, frequencies, query + head * kHeadDim, at,
                 args.rotary_dim, args.eps, precise::rsqrt(float(kHeadDim)), lane);
  } else {
    const ulong offset = (ulong(group.y) * args.kv_heads + group.x - args.heads) * kHeadDim;
    prepare_head(key + offset, k_norm, frequencies, rotated_key + offset, at, args.rotary_dim, args.eps, 1.0f, lane);
  }
}

template <typename T>
[[kernel, max_total_threads_per_threadgroup(kSimdWidth)]] void attention_cache_write(
    device const bfloat* key [[buffer(0)]],
    device const T* value [[buffer(1)]],
    device const int* position [[buffer(2)]],
    device bfloat* cache_keys [[buffer(3)]],
    device bfloat* cache_values [[buffer(4)]],
    constant AttentionArgs& args [[buffer(5)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  const uint kv_head = group.x % args.kv_heads;
  const ulong from = (ulong(group.y) * args.kv_heads + kv_head) * args.head_dim;
  const ulong to = cache_offset(kv_head, args.capacity, uint(*position) + group.y, args.head_dim);
  if (group.x < args.kv_heads) {
    copy_head(key + from, cache_keys + to, args.head_dim, lane);
  } else {
    copy_head(value + from, cache_values + to, args.head_dim, lane);
  }
}

template [[host_name("attention_prepare")]] [[kernel]]
decltype(attention_prepare<float>) attention_prepare<float>;
template [[host_name("attention_prepare_bf16")]] [[kernel]]
decltype(attention_prepare<bfloat>) attention_prepare<bfloat>;
template [[host_name("attention_norm_rope")]] [[kernel]]
decltype(attention_norm_rope<float>) attention_norm_rope<float>;
template [[host_name("attention_norm_rope_bf16")]] [[kernel]]
decltype(attention_norm_rope<bfloat>) attention_norm_rope<bfloat>;
template [[host_name("attention_cache_write")]] [[kernel]]
decltype(attention_cache_write<float>) attention_cache_write<float>;
template [[host_name("attention_cache_write_bf16")]] [[kernel]]
decltype(attention_cache_write<bfloat>) attention_cache_write<bfloat>;
