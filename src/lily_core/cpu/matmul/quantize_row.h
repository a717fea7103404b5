// cpu/matmul/quantize_row.h -- float32 activations to 16-bit block fixed point, the same bits whatever the vectors.
#pragma once

#include <cstdint>
#include <cstring>

#include "cpu/kernels.h"

namespace lily::cpu {
namespace {

inline std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float float_of(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// The sum of a group in a fixed order: 16 running sums, then halves upon halves.
inline float group_sum(const float* x, std::int64_t size) {
  float lanes[16] = {};
  for (std::int64_t k = 0; k < size; k += 16) {
    for (int i = 0; i < 16; ++i) lanes[i] += x[k + i];
  }
  for (int i = 0; i < 8; ++i) lanes[i] += lanes[i + 8];
  for (int i = 0; i < 4; ++i) lanes[i] += lanes[i + 4];
  return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
}

// Bits of the largest magnitude; those of an infinity or more when a value is not finite.
inline std::uint32_t group_magnitude(const float* x, std::int64_t size) {
  std::int32_t largest = 0;
  for (std::int64_t k = 0; k < size; ++k) {
    const auto magnitude = static_cast<std::int32_t>(bits_of(x[k]) & 0x7fffffffU);
    largest = magnitude > largest ? magnitude : largest;
  }
  return static_cast<std::uint32_t>(largest);
}

// The integer nearest to value, ties to even; |value| < 2^22. The float's own rounding does it.
inline std::int32_t nearest(float value) {
  constexpr float shift = 0x1.8p23F;
  return static_cast<std::int32_t>(bits_of(value + shift) - bits_of(shift));
}

inline constexpr int kSplitValues = 32;

// Bytes 0, 2, 4, 6 and then 1, 3, 5, 7 of each 8; what a compiler can do with vectors.
inline void order_nibbles(std::int8_t* values) {
  constexpr std::uint64_t bytes = 0x00ff00ff00ff00ffULL;
  constexpr std::uint64_t pairs = 0x0000ffff0000ffffULL;
  constexpr std::uint64_t fours = 0x00000000ffffffffULL;
  std::uint64_t words[kSplitValues / 8];
  std::memcpy(words, values, sizeof words);
  for (std::uint64_t& word : words) {
    std::uint64_t even = word & bytes;
    std::uint64_t odd = word >> 8 & bytes;
    even = (even | even >> 8) & pairs;
    odd = (odd | odd >> 8) & pairs;
    even = (even | even >> 16) & fours;
    odd = (odd | odd >> 16) & fours;
    word = even | odd << 32;
  }
  std::memcpy(values, words, sizeof words);
}

// Halves of 32 values; q = 256 * high + low with low in [-128, 127].
inline void split_values(const float* x, float inverse, ColumnOrder order, std::int8_t* high, std::int8_t* low) {
  std::int32_t q[kSplitValues];
  std::int8_t high_bytes[kSplitValues];
  std::int8_t low_bytes[kSplitValues];
  for (int i = 0; i < kSplitValues; ++i) q[i] = nearest(x[i] * inverse);
  for (int i = 0; i < kSplitValues; ++i) high_bytes[i] = static_cast<std::int8_t>((q[i] + 128) >> 8);
  for (int i = 0; i < kSplitValues; ++i) low_bytes[i] = static_cast<std::int8_t>(q[i]);
  if (order == ColumnOrder::nibble) {
    order_nibbles(high_bytes);
    order_nibbles(low_bytes);
  }
  std::memcpy(high, high_bytes, sizeof high_bytes);
  std::memcpy(low, low_bytes, sizeof low_bytes);
}

// A group whose magnitudes are all below 2^-100 counts as zero: its scale's inverse could overflow.
inline void quantize_row(const float* x, std::int64_t columns, std::int32_t group_size, ColumnOrder order,
                         std::int8_t* high, std::int8_t* low, float* scales, float* sums) {
  constexpr float limit = 32512.0F;
  constexpr std::uint32_t infinity = 0x7f800000U;
  for (std::int64_t begin = 0, g = 0; begin < columns; begin += group_size, ++g) {
    const std::uint32_t bits = group_magnitude(x + begin, group_size);
    const bool usable = bits < infinity && bits >= bits_of(0x1p-100F);
    const float magnitude = float_of(bits);
    const float inverse = usable ? limit / magnitude : 0.0F;
    scales[g] = bits >= infinity ? float_of(0x7fc00000U) : usable ? magnitude / limit : 0.0F;
    sums[g] = group_sum(x + begin, group_size);
    for (std::int64_t k = begin; k < begin + group_size; k += kSplitValues) {
      split_values(x + k, inverse, order, high + k, low + k);
    }
  }
}

}  // namespace
}  // namespace lily::cpu
