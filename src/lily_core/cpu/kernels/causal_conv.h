// cpu/kernels/causal_conv.h -- causal depthwise convolution over time and silu, for a range of channels.
#pragma once

#include "cpu/kernels/simd.h"

namespace lily::cpu {
namespace {

struct ConvArgs {
  const float* in;    // [tokens, channels]
  float* history;     // [kernel - 1, channels]
  const float* taps;  // [channels, kernel]
  std::int64_t tokens;
  std::int64_t channels;
  std::int64_t kernel;
  float* out;  // [tokens, channels]; may be in
};

// taps[channel + lane, tap] for 16 channels, zero beyond count.
template <class V>
Strip<V> load_tap(const ConvArgs& args, std::int64_t channel, std::int64_t tap, std::int64_t count) {
  alignas(64) float lane[strip_width] = {};
  for (std::int64_t i = 0; i < smaller(count, strip_width); ++i) lane[i] = args.taps[(channel + i) * args.kernel + tap];
  return Strip<V>::load(lane);
}

// Any kernel: history itself is the window and moves by one row a token.
template <class V>
void conv_any_kernel(const ConvArgs& args, std::int64_t channel, std::int64_t count) {
  const std::int64_t past = args.kernel - 1;
  const auto last_tap = load_tap<V>(args, channel, past, count);
  for (std::int64_t t = 0; t < args.tokens; ++t) {
    const std::int64_t offset = t * args.channels + channel;
    const auto current = Strip<V>::load_first(args.in + offset, count);
    auto sum = Strip<V>::broadcast(0.0F);
    for (std::int64_t j = 0; j < past; ++j) {
      float* row = args.history + j * args.channels + channel;
      const auto value = Strip<V>::load_first(row, count);
      const auto tap = load_tap<V>(args, channel, j, count);
      sum = j == 0 ? tap * value : fma(tap, value, sum);
      if (j > 0) value.store_first(row - args.channels, count);
    }
    sum = past == 0 ? last_tap * current : fma(last_tap, current, sum);
    if (past > 0) current.store_first(args.history + (past - 1) * args.channels + channel, count);
    silu(sum).store_first(args.out + offset, count);
  }
}

// kernel 4, `strips` x 16 channels: the window stays in registers (or in the first-level cache).
template <class V, int strips>
void conv_kernel_4(ConvArgs args, std::int64_t channel, std::int64_t count) {
  using S = Strip<V>;
  S tap[4][strips];
  S window[3][strips];  // the three rows before the current one, oldest first
  const auto left = [&](int s) { return count - s * strip_width; };
  for (int s = 0; s < strips; ++s) {
    const std::int64_t first = channel + s * strip_width;
    for (int j = 0; j < 4; ++j) tap[j][s] = load_tap<V>(args, first, j, left(s));
    for (int j = 0; j < 3; ++j) window[j][s] = S::load_first(args.history + j * args.channels + first, left(s));
  }
  for (std::int64_t t = 0; t < args.tokens; ++t) {
    for (int s = 0; s < strips; ++s) {
      // Rows are pages apart, which the processor does not prefetch.
      const std::int64_t ahead = smaller(t + 8, args.tokens - 1) * args.channels;
      __builtin_prefetch(args.in + ahead + channel + s * strip_width);
      const std::int64_t offset = t * args.channels + channel + s * strip_width;
      const S current = S::load_first(args.in + offset, left(s));
      S sum = tap[0][s] * window[0][s];
      sum = fma(tap[1][s], window[1][s], sum);
      sum = fma(tap[2][s], window[2][s], sum);
      sum = fma(tap[3][s], current, sum);
      silu(sum).store_first(args.out + offset, left(s));
      window[0][s] = window[1][s];
      window[1][s] = window[2][s];
      window[2][s] = current;
    }
  }
  for (int s = 0; s < strips; ++s) {
    for (int j = 0; j < 3; ++j) {
      window[j][s].store_first(args.history + j * args.channels + channel + s * strip_width, left(s));
    }
  }
}

template <class V>
void causal_conv_silu(const float* in, float* history, const float* taps, std::int64_t tokens, std::int64_t channels,
                      std::int64_t kernel, std::int64_t channel_begin, std::int64_t channel_end, float* out) {
  constexpr int strips = 4;
  const ConvArgs args{in, history, taps, tokens, channels, kernel, out};
  std::int64_t channel = channel_begin;
  if (kernel == 4) {
    for (; channel + strips * strip_width <= channel_end; channel += strips * strip_width) {
      conv_kernel_4<V, strips>(args, channel, strips * strip_width);
    }
    for (; channel < channel_end; channel += strip_width) {
      conv_kernel_4<V, 1>(args, channel, channel_end - channel);
    }
    return;
  }
  for (; channel < channel_end; channel += strip_width) conv_any_kernel<V>(args, channel, channel_end - channel);
}

}  // namespace
}  // namespace lily::cpu
