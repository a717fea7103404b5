// cpu/kernels/simd_avx512.h -- VectorAvx512: 16 float lanes in one register (AVX-512 F, BW, VL, DQ).
#pragma once

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12 warns of its own _mm512_undefined_ps
#endif
#include <immintrin.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#include "cpu/kernels/simd.h"

namespace lily::cpu {
namespace {

struct VectorAvx512 {
  static constexpr int width = 16;
  static constexpr int gdn_rows = 4;         // state rows that share the loads of q and k
  static constexpr int score_positions = 4;  // 4 query rows x this many positions in registers
  static constexpr int value_vectors = 4;    // 4 query rows x this many output vectors in registers
  __m512 lanes;

  static __mmask16 first(std::int64_t count) {
    return count >= 16 ? __mmask16(0xffff) : count <= 0 ? __mmask16(0) : __mmask16((1U << count) - 1U);
  }
  static VectorAvx512 load(const float* from) { return {_mm512_loadu_ps(from)}; }
  static VectorAvx512 load_first(const float* from, std::int64_t count) {
    return {_mm512_maskz_loadu_ps(first(count), from)};
  }
  static VectorAvx512 broadcast(float value) { return {_mm512_set1_ps(value)}; }
  void store(float* to) const { _mm512_storeu_ps(to, lanes); }
  void store_first(float* to, std::int64_t count) const { _mm512_mask_storeu_ps(to, first(count), lanes); }

  static VectorAvx512 from_bfloat16(const std::uint16_t* from) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
  }
  static VectorAvx512 from_float16(const std::uint16_t* from) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)))};
  }
  void to_bfloat16(std::uint16_t* to) const {
    const __m512i bits = _mm512_castps_si512(lanes);
    const __m512i high = _mm512_srli_epi32(bits, 16);
    const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd), 16);
    const __mmask16 nan = _mm512_cmp_ps_mask(lanes, lanes, _CMP_UNORD_Q);
    const __m512i quiet = _mm512_or_si512(high, _mm512_set1_epi32(0x40));
    const __m256i result = _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(rounded, nan, quiet));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), result);
  }
  void to_float16(std::uint16_t* to) const {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                        _mm512_cvtps_ph(lanes, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }

  friend VectorAvx512 operator+(VectorAvx512 a, VectorAvx512 b) { return {_mm512_add_ps(a.lanes, b.lanes)}; }
  friend VectorAvx512 operator-(VectorAvx512 a, VectorAvx512 b) { return {_mm512_sub_ps(a.lanes, b.lanes)}; }
  friend VectorAvx512 operator*(VectorAvx512 a, VectorAvx512 b) { return {_mm512_mul_ps(a.lanes, b.lanes)}; }
  friend VectorAvx512 operator/(VectorAvx512 a, VectorAvx512 b) { return {_mm512_div_ps(a.lanes, b.lanes)}; }
  friend VectorAvx512 fma(VectorAvx512 a, VectorAvx512 b, VectorAvx512 c) {
    return {_mm512_fmadd_ps(a.lanes, b.lanes, c.lanes)};
  }
  friend VectorAvx512 max(VectorAvx512 a, VectorAvx512 b) { return {_mm512_max_ps(a.lanes, b.lanes)}; }
  friend VectorAvx512 min(VectorAvx512 a, VectorAvx512 b) { return {_mm512_min_ps(a.lanes, b.lanes)}; }
  friend VectorAvx512 round(VectorAvx512 a) {
    return {_mm512_roundscale_ps(a.lanes, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
  }
  friend VectorAvx512 scale_by_power(VectorAvx512 a, VectorAvx512 n) { return {_mm512_scalef_ps(a.lanes, n.lanes)}; }

  // sums[i] = the sum of rows[i][0..16), for 16 rows at once; rows and sums are 64-byte aligned.
  static void sum_16(const float* rows, float* sums) {
    const auto row = [&](int i) { return _mm512_load_ps(rows + 16 * i); };
    const auto halves = [](__m512 a, __m512 b) {  // 16 lanes of a and b -> 8 of a, 8 of b
      return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    };
    const auto quarters = [](__m512 a, __m512 b) {  // 8 lanes of four rows -> 4 lanes of each
      return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
    };
    const auto quad = [&](int i) {  // 4 lanes of each of the rows i, i + 4, i + 8, i + 12
      return quarters(halves(row(i), row(i + 4)), halves(row(i + 8), row(i + 12)));
    };
    const auto pairs = [](__m512 a, __m512 b) {
      const __m512d c = _mm512_castps_pd(a);
      const __m512d d = _mm512_castps_pd(b);
      return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(c, d)), _mm512_castpd_ps(_mm512_unpackhi_pd(c, d)));
    };
    const __m512 a = pairs(quad(0), quad(1));
    const __m512 b = pairs(quad(2), quad(3));
    _mm512_store_ps(sums, _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd)));
  }
};

}  // namespace
}  // namespace lily::cpu
