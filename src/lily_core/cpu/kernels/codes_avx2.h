// cpu/kernels/codes_avx2.h -- sums of products of 16-bit codes with AVX2.
#pragma once

#include "cpu/kernels/attention_codes.h"
#include "cpu/kernels/simd_avx2.h"

namespace lily::cpu {
namespace {

template <>
struct CodeKernels<VectorAvx2> {
  static constexpr bool transposes = false;

  static void encode(const float* x, const VectorAvx2& factor, std::int16_t* to) {
    const auto whole = [&](int i) {
      return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), factor.lanes));
    };
    for (int half = 0; half < 2; ++half) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 16 * half),
                          _mm256_packs_epi32(whole(2 * half), whole(2 * half + 1)));
    }
  }

  // The sums of the lanes of a, b, c and d.
  static __m128i totals(__m256i a, __m256i b, __m256i c, __m256i d) {
    const __m256i all = _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d));
    return _mm_add_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
  }

  template <int rows>
  static void score(const std::int16_t* query, const float* query_units, const std::int16_t* keys,
                    const float* key_units, std::int64_t width, float* scores, std::int64_t stride) {
    constexpr int together = rows < 2 ? rows : 2;  // rows that fit the registers
    const auto load = [](const std::int16_t* from) {
      return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    };
    for (int first = 0; first < rows; first += together) {
      __m256i sum[together][code_positions];
      for (auto& row : sum) {
        for (auto& value : row) value = _mm256_setzero_si256();
      }
      for (std::int64_t d = 0; d < width; d += 16) {
        __m256i q[together];
        for (int r = 0; r < together; ++r) q[r] = load(query + (first + r) * width + d);
        for (int p = 0; p < code_positions; ++p) {
          const __m256i key = load(keys + p * width + d);
          for (int r = 0; r < together; ++r) {
            sum[r][p] = _mm256_add_epi32(sum[r][p], _mm256_madd_epi16(q[r], key));
          }
        }
      }
      for (int r = 0; r < together; ++r) {
        const __m128 factor = _mm_mul_ps(_mm_set1_ps(query_units[first + r]), _mm_loadu_ps(key_units));
        const __m128 row = _mm_cvtepi32_ps(totals(sum[r][0], sum[r][1], sum[r][2], sum[r][3]));
        _mm_storeu_ps(scores + (first + r) * stride, _mm_mul_ps(row, factor));
      }
    }
  }
};

}  // namespace
}  // namespace lily::cpu
