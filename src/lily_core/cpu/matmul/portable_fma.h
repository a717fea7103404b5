// cpu/matmul/portable_fma.h -- fused multiply-add with the bits of the instruction, on processors without it.
#pragma once

#include "cpu/matmul/tile.h"

namespace lily::cpu {
namespace {

// fma(a, b, c) with one rounding. Without the instruction: the product is exact in float64; the sum is rounded to
// odd there, which the second rounding, to float32, cannot spoil (Boldo and Melquiond, 2008).
inline float fused_multiply_add(float a, float b, float c) {
#ifdef __FP_FAST_FMAF
  return __builtin_fmaf(a, b, c);
#else
  const double product = static_cast<double>(a) * static_cast<double>(b);
  const double addend = c;
  const double sum = product + addend;
  const double back = sum - product;
  const double error = (product - (sum - back)) + (addend - back);
  std::uint64_t bits;
  std::uint64_t error_bits;
  std::memcpy(&bits, &sum, sizeof bits);
  std::memcpy(&error_bits, &error, sizeof error_bits);
  const std::uint64_t inexact = static_cast<std::uint64_t>(error < 0.0) | static_cast<std::uint64_t>(error > 0.0);
  const std::uint64_t step = ~bits & inexact;                     // 1: the sum is inexact and even
  const std::uint64_t towards = 0 - ((bits ^ error_bits) >> 63);  // all ones: the exact sum is nearer to zero
  bits += (step ^ towards) - towards;
  double odd;
  std::memcpy(&odd, &bits, sizeof odd);
  return static_cast<float>(odd);
#endif
}

// y = fma(a, b, y) for the rows of a tile. Rounding the float64 sum to float32 is right by itself unless that sum lies
// half way between two float32 numbers, or is subnormal as a float32: only then the exact way is taken.
inline void fused_multiply_add(const float* a, const float* b, float* y) {
#ifdef __FP_FAST_FMAF
  for (int n = 0; n < kTileRows; ++n) y[n] = __builtin_fmaf(a[n], b[n], y[n]);
#else
  constexpr std::uint64_t rest_mask = (std::uint64_t{1} << 29) - 1;  // bits of a float64 that float32 has not
  constexpr std::uint64_t half_way = std::uint64_t{1} << 28;
  constexpr std::uint64_t smallest_normal = std::uint64_t{1023 - 126} << 52;
  double sums[kTileRows];
  for (int n = 0; n < kTileRows; ++n) sums[n] = static_cast<double>(a[n]) * static_cast<double>(b[n]) + y[n];
  std::uint64_t bits[kTileRows];
  std::memcpy(bits, sums, sizeof bits);
  std::uint64_t doubt = 0;  // its highest bit
  for (int n = 0; n < kTileRows; ++n) {
    doubt |= ((bits[n] & rest_mask) ^ half_way) - 1;
    doubt |= (bits[n] & ~(std::uint64_t{1} << 63)) - smallest_normal;
  }
  if ((doubt >> 63) != 0) {
    for (int n = 0; n < kTileRows; ++n) y[n] = fused_multiply_add(a[n], b[n], y[n]);
  } else {
    for (int n = 0; n < kTileRows; ++n) y[n] = static_cast<float>(sums[n]);
  }
#endif
}

}  // namespace
}  // namespace lily::cpu
