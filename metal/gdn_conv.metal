// gdn_conv.metal -- the causal convolution of Gated DeltaNet with silu, the norms of query and key, decay and beta.
//
// Channels are [q heads | k heads | v heads], conv_dim in all. The history, [kernel_size - 1 + tokens, conv_dim], is
// conv_state and then the tokens' qkv; the output of token t is made of its rows t to t + kernel_size - 1. A
// threadgroup makes one head of one token; that of the last token also saves its head's channels of the last
// kernel_size - 1 rows.
#include "lily_common.h"

constant constexpr float kL2Epsilon = 1e-6f;     // added to the sum of squares
constant constexpr uint kChannelsPerThread = 2;  // of a key head: key_dim is at most 256
constant constexpr uint kTapsAtOnce = 4;

template <typename T>
METAL_FUNC float history_at(device const T* qkv, device const float* conv_state, constant GdnArgs& args, uint row,
                            uint conv_dim, uint channel) {
  const uint previous = args.kernel_size - 1;
  if (row < previous) return conv_state[row * conv_dim + channel];
  return float(qkv[(row - previous) * conv_dim + channel]);
}

// silu of the convolution. Four taps at a time, so that their loads do not wait for each other.
template <typename T>
METAL_FUNC float convolve(device const T* qkv, device const float* conv_state, device const float* taps,
                          constant GdnArgs& args, uint token, uint conv_dim, uint channel) {
  float sum = 0.0f;
  for (uint first = 0; first < args.kernel_size; first += kTapsAtOnce) {
    float x[kTapsAtOnce];
    float weight[kTapsAtOnce];
    UNROLL for (uint j = 0; j < kTapsAtOnce; j++) {
      const uint tap = min(first + j, args.kernel_size - 1);
      x[j] = history_at(qkv, conv_state, args, token + tap, conv_dim, channel);
      weight[j] = taps[channel * args.kernel_size + tap];
    }
    UNROLL for (uint j = 0; j < kTapsAtOnce; j++) {
      if (first + j < args.kernel_size) sum += weight[j] * x[j];
    }
  }
  return silu(sum);
}

template <typename T>
[[kernel, max_total_threads_per_threadgroup(kRowThreads)]] void gdn_conv(
    device const T* qkv [[buffer(0)]],                // [tokens, conv_dim]
    device const float* a [[buffer(1)]],              // [tokens, value_heads]
    device const float* b [[buffer(2)]],              // [tokens, value_heads]
    device const float* taps [[buffer(3)]],           // [conv_dim, kernel_size], oldest first
    device const float* decay_rate [[buffer(4)]],     // [value_heads]
    device const float* dt_bias [[buffer(5)]],        // [value_heads]
    device const float* conv_state [[buffer(6)]],     // [kernel_size - 1, conv_dim], oldest first
    device float* next_conv_state [[buffer(7)]],      // [kernel_size - 1, conv_dim]
    device bfloat* query [[buffer(8)]],               // [tokens, key_heads, key_dim]
    device bfloat* key [[buffer(9)]],                 // [tokens, key_heads, key_dim]
    device bfloat* value [[buffer(10)]],              // [tokens, value_heads, value_dim]
    device float* decay [[buffer(11)]],               // [tokens, value_heads]
    device float* beta [[buffer(12)]],                // [tokens, value_heads]
    constant GdnArgs& args [[buffer(13)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float partial[kRowThreads / kSimdWidth];
  const uint token = group.y;
  const uint key_size = args.key_heads * args.key_dim;
  const uint conv_dim = 2 * key_size + args.value_heads * args.value_dim;
  const bool is_value = group.x >= 2 * args.key_heads;
  const uint value_head = group.x - 2 * args.key_heads;
  const uint size = is_value ? args.value_dim : args.key_dim;
  const uint first_channel = is_value ? 2 * key_size + value_head * size : group.x * size;

  if (token == args.tokens - 1) {
    for (uint channel = first_channel + thread_index; channel < first_channel + size; channel += kRowThreads) {
      for (uint row = 0; row + 1 < args.kernel_size; row++) {
        next_conv_state[row * conv_dim + channel] =
            history_at(qkv, conv_state, args, args.tokens + row, conv_dim, channel);
      }
    }
  }
  if (is_value) {
    const uint at = token * args.value_heads + value_head;
    for (uint i = thread_index; i < size; i += kRowThreads) {
      value[at * size + i] = bfloat(convolve(qkv, conv_state, taps, args, token, conv_dim, first_channel + i));
    }
    if (thread_index == 0) {
      decay[at] = precise::exp(-decay_rate[value_head] * softplus(a[at] + dt_bias[value_head]));
      beta[at] = sigmoid(b[at]);
    }
    return;
  }
  float results[kChannelsPerThread];
  float squares = 0.0f;
  UNROLL for (uint i = 0; i < kChannelsPerThread; i++) {
    const uint at = thread_index + i * kRowThreads;
    results[i] = 0.0f;
    if (at < size) results[i] = convolve(qkv, conv_state, taps, args, token, conv_dim, first_channel + at);
    squares += results[i] * results[i];
  }
  squares = simd_sum(squares);
  if (lane == 0) partial[simdgroup] = squares;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const float total = (partial[0] + partial[1]) + (partial[2] + partial[3]);
  const bool is_query = group.x < args.key_heads;
  const float scale = precise::rsqrt(total + kL2Epsilon) * (is_query ? precise::rsqrt(float(size)) : 1.0f);
  device bfloat* out = is_query ? query : key;
  const uint first_out = token * key_size + (is_query ? first_channel : first_channel - key_size);
  UNROLL for (uint i = 0; i < kChannelsPerThread; i++) {
    const uint at = thread_index + i * kRowThreads;
    if (at < size) out[first_out + at] = bfloat(results[i] * scale);
  }
}

template [[host_name("gdn_conv")]] [[kernel]] decltype(gdn_conv<float>) gdn_conv<float>;
template [[host_name("gdn_conv_bf16")]] [[kernel]] decltype(gdn_conv<bfloat>) gdn_conv<bfloat>;
