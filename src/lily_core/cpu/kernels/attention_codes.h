// cpu/kernels/attention_codes.h -- queries and keys as 16-bit codes, whose products are summed exactly.
//
// A row x is unit * code, |code| <= 32767. The norm of key codes is at most key_norm, that of query codes query_norm:
// the dot product of two of them fits 32 bits, and so does any part of it (Cauchy and Schwarz), whatever is added
// first. So every instruction set gives the same sum. A value is rounded by unit / 2 at most; at head_dim 256 that
// is 2.5e-4 of a key's root mean square, an eighth of what bfloat16 rounds such a value by.
#pragma once

#include "cpu/kernels.h"
#include "cpu/kernels/elementwise.h"
#include "cpu/kernels/simd.h"

namespace lily::cpu {
namespace {

// key_norm * query_norm + what rounding adds to rows, 0.5 sqrt(head_dim) each, stays below 2^31.
constexpr float key_norm = 32700.0F;
constexpr float query_norm = 65500.0F;
constexpr float largest_code = 32767.0F;
constexpr float smallest_unit = 1e-22F;  // above it no square underflows float32, and the inverse is finite
constexpr std::int64_t code_strip = 32;  // rows of codes are padded with zeros to a multiple
constexpr int code_positions = 4;        // keys of a tile of scores
constexpr int encoded_together = 16;     // keys

// What an instruction set does with codes; the specialisations of kernels/codes_*.h do the same faster.
template <class V>
struct CodeKernels {
  static constexpr bool transposes = false;

  // The rounded products of code_strip values and a factor, in an order that queries and keys share.
  static void encode(const float* x, const V& factor, std::int16_t* to) {
    float lanes[V::width];
    for (std::int64_t first = 0; first < code_strip; first += V::width) {
      round(V::load(x + first) * factor).store(lanes);
      for (int i = 0; i < V::width; ++i) to[first + i] = static_cast<std::int16_t>(lanes[i]);
    }
  }

  // scores[row, position] of `rows` queries and code_positions keys; rows of codes are `width` codes apart, rows of
  // scores `stride` floats.
  template <int rows>
  static void score(const std::int16_t* query, const float* query_units, const std::int16_t* keys,
                    const float* key_units, std::int64_t width, float* scores, std::int64_t stride) {
    for (int r = 0; r < rows; ++r) {
      for (int p = 0; p < code_positions; ++p) {
        const std::int16_t* a = query + r * width;
        const std::int16_t* b = keys + p * width;
        std::int32_t sum = 0;
        for (std::int64_t d = 0; d < width; ++d) sum += std::int32_t{a[d]} * b[d];
        scores[r * stride + p] = static_cast<float>(sum) * (query_units[r] * key_units[p]);
      }
    }
  }
};

// The codes of x [width floats, zeros behind head_dim], given its unit. A row that is not finite has an infinite
// or undefined unit and zeros for codes: its products are NaN.
template <class V>
void encode_row(const float* x, std::int64_t width, float unit, std::int16_t* codes) {
  std::int64_t d = 0;
  if (unit < __builtin_inff()) {
    const V inverse = V::broadcast(1.0F / unit);
    for (; d < width; d += code_strip) CodeKernels<V>::encode(x + d, inverse, codes + d);
  }
  for (; d < width; ++d) codes[d] = 0;
}

inline float at_least_smallest(float unit) { return unit < smallest_unit ? smallest_unit : unit; }  // NaN stays

// Codes of a query; returns the unit.
template <class V>
float encode_query(const float* x, std::int64_t width, std::int16_t* codes) {
  const auto zero = Strip<V>::broadcast(0.0F);
  auto squares = zero;
  auto most = zero;
  for (std::int64_t d = 0; d < width; d += strip_width) {
    const auto value = Strip<V>::load(x + d);
    squares = fma(value, value, squares);
    most = max(most, max(value, zero - value));
  }
  const float by_norm = __builtin_sqrtf(sum_lanes(squares)) / query_norm;
  const float by_size = max_lanes(most) / largest_code;
  const float unit = at_least_smallest(by_norm < by_size ? by_size : by_norm);
  encode_row<V>(x, width, unit, codes);
  return unit;
}

// Codes and units of the keys x [encoded_together, width], of which squares [encoded_together, 16] are partial sums.
template <class V>
void encode_keys(const float* x, const float* squares, std::int64_t width, std::int16_t* codes, float* units) {
  alignas(64) float sums[encoded_together];
  V::sum_16(squares, sums);
  for (int p = 0; p < encoded_together; ++p) sums[p] = __builtin_sqrtf(sums[p]);
  for (int p = 0; p < encoded_together; ++p) units[p] = at_least_smallest(sums[p] / key_norm);
  for (int p = 0; p < encoded_together; ++p) {
    encode_row<V>(x + p * width, width, units[p], codes + p * width);
  }
}

}  // namespace
}  // namespace lily::cpu
