// cpu/kernels/simd_avx2.h -- VectorAvx2: 8 float lanes in one register (AVX2, FMA, F16C).
#pragma once

#include <immintrin.h>

#include "cpu/kernels/simd.h"

namespace lily::cpu {
namespace {

struct VectorAvx2 {
  static constexpr int width = 8;
  static constexpr int gdn_rows = 2;
  static constexpr int score_positions = 2;
  static constexpr int value_vectors = 2;
  __m256 lanes;

  static __m256i first(std::int64_t count) {
    const int bounded = count >= 8 ? 8 : count <= 0 ? 0 : static_cast<int>(count);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(bounded), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static VectorAvx2 load(const float* from) { return {_mm256_loadu_ps(from)}; }
  static VectorAvx2 load_first(const float* from, std::int64_t count) {
    return {_mm256_maskload_ps(from, first(count))};
  }
  static VectorAvx2 broadcast(float value) { return {_mm256_set1_ps(value)}; }
  void store(float* to) const { _mm256_storeu_ps(to, lanes); }
  void store_first(float* to, std::int64_t count) const { _mm256_maskstore_ps(to, first(count), lanes); }

  static VectorAvx2 from_bfloat16(const std::uint16_t* from) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16))};
  }
  static VectorAvx2 from_float16(const std::uint16_t* from) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)))};
  }
  void to_bfloat16(std::uint16_t* to) const {
    const __m256i bits = _mm256_castps_si256(lanes);
    const __m256i high = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd), 16);
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(lanes, lanes, _CMP_UNORD_Q));
    const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    const __m256i result = _mm256_blendv_epi8(rounded, quiet, nan);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                     _mm_packus_epi32(_mm256_castsi256_si128(result), _mm256_extracti128_si256(result, 1)));
  }
  void to_float16(std::uint16_t* to) const {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                     _mm256_cvtps_ph(lanes, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }

  friend VectorAvx2 operator+(VectorAvx2 a, VectorAvx2 b) { return {_mm256_add_ps(a.lanes, b.lanes)}; }
  friend VectorAvx2 operator-(VectorAvx2 a, VectorAvx2 b) { return {_mm256_sub_ps(a.lanes, b.lanes)}; }
  friend VectorAvx2 operator*(VectorAvx2 a, VectorAvx2 b) { return {_mm256_mul_ps(a.lanes, b.lanes)}; }
  friend VectorAvx2 operator/(VectorAvx2 a, VectorAvx2 b) { return {_mm256_div_ps(a.lanes, b.lanes)}; }
  friend VectorAvx2 fma(VectorAvx2 a, VectorAvx2 b, VectorAvx2 c) {
    return {_mm256_fmadd_ps(a.lanes, b.lanes, c.lanes)};
  }
  friend VectorAvx2 max(VectorAvx2 a, VectorAvx2 b) { return {_mm256_max_ps(a.lanes, b.lanes)}; }
  friend VectorAvx2 min(VectorAvx2 a, VectorAvx2 b) { return {_mm256_min_ps(a.lanes, b.lanes)}; }
  friend VectorAvx2 round(VectorAvx2 a) {
    return {_mm256_round_ps(a.lanes, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
  }
  // a * 2^n for integral n in [-250, 250], in two exact steps but for the last rounding of a subnormal.
  friend VectorAvx2 scale_by_power(VectorAvx2 a, VectorAvx2 n) {
    const __m256i power = _mm256_cvtps_epi32(n.lanes);
    const __m256i half = _mm256_srai_epi32(power, 1);
    const auto factor = [](__m256i exponent) {
      return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(exponent, _mm256_set1_epi32(127)), 23));
    };
    return {_mm256_mul_ps(_mm256_mul_ps(a.lanes, factor(half)), factor(_mm256_sub_epi32(power, half)))};
  }

  static __m256 pairs(__m256 a, __m256 b) {
    const __m256d c = _mm256_castps_pd(a);
    const __m256d d = _mm256_castps_pd(b);
    return _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(c, d)), _mm256_castpd_ps(_mm256_unpackhi_pd(c, d)));
  }
  // sums[i] = the sum of rows[i][0..16), for 16 rows at once; rows and sums are 64-byte aligned.
  static void sum_16(const float* rows, float* sums) {
    for (int base = 0; base < 16; base += 8) {
      const auto half = [&](int i) {
        const float* row = rows + 16 * (base + i);
        return _mm256_add_ps(_mm256_load_ps(row), _mm256_load_ps(row + 8));
      };
      const auto quad = [&](int i) {  // 4 lanes of the rows base + i and base + i + 4
        const __m256 a = half(i);
        const __m256 b = half(i + 4);
        return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
      };
      const __m256 a = pairs(quad(0), quad(1));
      const __m256 b = pairs(quad(2), quad(3));
      _mm256_store_ps(sums + base, _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x88), _mm256_shuffle_ps(a, b, 0xdd)));
    }
  }
};

}  // namespace
}  // namespace lily::cpu
