// base/sampling_arithmetic.h -- the arithmetic of a draw, the same to the bit on every processor.
//
// GPUs have no double, and sums of floats depend on their order. So masses are integers, in units of 2^-40 of the most
// probable candidate's, and sums of them are exact in any order. metal/sampling.metal follows this file to the letter:
//
//   distance  = min(maximum - logit, FLT_MAX), below 2^-100 taken as 0      (one float subtraction)
//   exponent  = floor(distance * scale), scale = 2^24 log2(e) / temperature (one float product; 24 bits of fraction)
//   mass      = 2^(40 - exponent / 2^24) from a polynomial in integers; 0 from exponent > 40 * 2^24 on and for -inf
//   kept mass = the least of: the mass of the top_k candidates or of all of them (total); the mass of the smallest run
//               of most probable candidates that has floor(top_p * total); the mass of those whose mass is >= min_p *
//               2^40
//   draw      = floor(kept mass * random64 / 2^64); chosen is the first candidate, by falling logit and then rising id,
//               up to which the sum of masses is above draw
//
// Masses are never greater for a smaller logit, so that each filter keeps the first candidates of that order. Relative
// error of a mass against exp((logit - maximum) / temperature), exponent being at most 40: 2^-24 of rounding the
// difference and as much each for the scale and the product, times 40 ln(2), plus 2^-24 ln(2) for the floor:
// below 5.1e-6; below 2.5e-7 for a candidate that is half as probable as the best. Cut off is at most 2^-40 a
// candidate.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace lily {

// The filters of Sampling in this arithmetic; both fractions are in units of 2^-31.
struct SamplingUnits {
  float scale;          // 0: an infinite temperature
  std::uint32_t top_p;  // 2^31: off
  std::uint32_t min_p;  // 0: off
};

namespace sampling {

constexpr int kMassBits = 40;
constexpr int kFractionBits = 24;
constexpr std::uint32_t kFractionUnit = 1U << 31;
constexpr float kLeastDistance = 0x1p-100F;  // far above subnormals, which some GPUs take as 0

[[nodiscard]] inline float scale_of(double temperature) {
  constexpr double kLog2E = 1.4426950408889634;
  const double scale = std::ldexp(kLog2E / temperature, kFractionBits);
  if (scale < static_cast<double>(std::numeric_limits<float>::min())) return 0.0F;
  return static_cast<float>(std::min(scale, static_cast<double>(std::numeric_limits<float>::max())));
}

[[nodiscard]] inline std::uint32_t fraction_of(double fraction) {
  return static_cast<std::uint32_t>(std::llround(std::ldexp(fraction, 31)));
}

[[nodiscard]] inline SamplingUnits units_of(double temperature, double top_p, double min_p) {
  return {.scale = scale_of(temperature), .top_p = fraction_of(top_p), .min_p = fraction_of(min_p)};
}

[[nodiscard]] inline std::uint32_t high_product(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::uint32_t>((std::uint64_t{a} * b) >> 32);
}

// 2^31 * 2^(-fraction / 2^32), least greatest error over [0, 1) but exact at 0; off by less than 9.
[[nodiscard]] inline std::uint32_t power_of_half(std::uint32_t fraction) {
  std::uint32_t value = 2739202U - high_product(fraction, 234782U);
  value = 20572593U - high_product(fraction, value);
  value = 119165869U - high_product(fraction, value);
  value = 515877823U - high_product(fraction, value);
  value = 1488521945U - high_product(fraction, value);
  return (1U << 31) - high_product(fraction, value);
}

[[nodiscard]] inline std::uint64_t mass_of(float logit, float maximum, float scale) {
  if (logit == -std::numeric_limits<float>::infinity()) return 0;
  const float difference = std::min(maximum - logit, std::numeric_limits<float>::max());
  const float exponent = (difference < kLeastDistance ? 0.0F : difference) * scale;
  constexpr std::uint32_t kLast = static_cast<std::uint32_t>(kMassBits) << kFractionBits;
  if (!(exponent <= static_cast<float>(kLast))) return 0;
  const auto bits = static_cast<std::uint32_t>(exponent);
  const std::uint64_t power = power_of_half(bits << (32 - kFractionBits));
  return (power << (kMassBits - 31)) >> (bits >> kFractionBits);
}

// floor(mass * fraction / 2^31), at least 1: what the kept candidates must reach.
[[nodiscard]] inline std::uint64_t share_of(std::uint64_t mass, std::uint32_t fraction) {
  const std::uint64_t share = (mass >> 31) * fraction + (((mass & (kFractionUnit - 1)) * fraction) >> 31);
  return std::max<std::uint64_t>(share, 1);
}

// floor(mass * random / 2^64).
[[nodiscard]] inline std::uint64_t scaled_draw(std::uint64_t mass, std::uint64_t random) {
  constexpr std::uint64_t kLow = 0xffffffffU;
  const std::uint64_t middle = (mass >> 32) * (random & kLow) + (((mass & kLow) * (random & kLow)) >> 32);
  const std::uint64_t other = (mass & kLow) * (random >> 32) + (middle & kLow);
  return (mass >> 32) * (random >> 32) + (middle >> 32) + (other >> 32);
}

}  // namespace sampling
}  // namespace lily
