// cpu/kernels/codes_avx512.h -- sums of products of 16-bit codes with AVX-512 VNNI.
#pragma once

#include "cpu/kernels/attention_codes.h"
#include "cpu/kernels/simd_avx512.h"

namespace lily::cpu {
namespace {

template <>
struct CodeKernels<VectorAvx512> {
  // For many queries, keys are transposed in pairs of codes: a vector has a pair of 16 positions, so nothing is added
  // across lanes.
  static constexpr bool transposes = true;
  static constexpr int transposed_positions = 32;

  static void encode(const float* x, const VectorAvx512& factor, std::int16_t* to) {
    const auto whole = [&](int i) {
      return _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 16 * i), factor.lanes));
    };
    _mm512_storeu_si512(to, _mm512_packs_epi32(whole(0), whole(1)));
  }

  // sum + the products of 16-bit pairs. The intrinsic makes GCC 12 copy the sums from register to register.
  static __m512i add_products(__m512i sum, __m512i a, __m512i b) {
    asm("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
  }

  static __m512i halves(__m512i a, __m512i b) {  // 16 lanes of a and b -> 8 of a, 8 of b
    return _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x44), _mm512_shuffle_i32x4(a, b, 0xee));
  }
  static __m512i quarters(__m512i a, __m512i b) {  // 8 lanes of four rows -> 4 lanes of each
    return _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
  }
  static __m512i pairs(__m512i a, __m512i b) {
    return _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
  }
  static __m512i last(__m512i a, __m512i b) {
    const __m512 c = _mm512_castsi512_ps(a);
    const __m512 d = _mm512_castsi512_ps(b);
    return _mm512_add_epi32(_mm512_castps_si512(_mm512_shuffle_ps(c, d, 0x88)),
                            _mm512_castps_si512(_mm512_shuffle_ps(c, d, 0xdd)));
  }

  template <int rows>
  static void score(const std::int16_t* query, const float* query_units, const std::int16_t* keys,
                    const float* key_units, std::int64_t width, float* scores, std::int64_t stride) {
    __m512i sum[16];
    for (int i = 0; i < 16; ++i) sum[i] = _mm512_setzero_si512();
    for (std::int64_t d = 0; d < width; d += code_strip) {
      __m512i key[code_positions];
      for (int p = 0; p < code_positions; ++p) key[p] = _mm512_loadu_si512(keys + p * width + d);
      for (int r = 0; r < rows; ++r) {
        const __m512i q = _mm512_loadu_si512(query + r * width + d);
        for (int p = 0; p < code_positions; ++p)
          sum[r * code_positions + p] = add_products(sum[r * code_positions + p], q, key[p]);
      }
    }
    const auto quad = [&](int i) {  // 4 lanes of each of the sums i, i + 4, i + 8, i + 12
      return quarters(halves(sum[i], sum[i + 4]), halves(sum[i + 8], sum[i + 12]));
    };
    const __m512 sums = _mm512_cvtepi32_ps(last(pairs(quad(0), quad(1)), pairs(quad(2), quad(3))));
    alignas(64) float lanes[16];
    _mm512_store_ps(lanes, sums);
    const __m128 key = _mm_loadu_ps(key_units);
    for (int r = 0; r < rows; ++r) {
      const __m128 factor = _mm_mul_ps(_mm_set1_ps(query_units[r]), key);
      _mm_storeu_ps(scores + r * stride, _mm_mul_ps(_mm_load_ps(lanes + code_positions * r), factor));
    }
  }

  // keys [transposed_positions, width] to pairs [transposed_positions / 16, width / 2, 16].
  static void transpose(const std::int16_t* keys, std::int64_t width, std::int32_t* to) {
    for (int first = 0; first < transposed_positions; first += 16) {
      for (std::int64_t d = 0; d < width; d += code_strip) {
        __m512i row[16];
        __m512i next[16];
        for (int r = 0; r < 16; ++r) row[r] = _mm512_loadu_si512(keys + (first + r) * width + d);
        for (int r = 0; r < 16; r += 2) {
          next[r] = _mm512_unpacklo_epi32(row[r], row[r + 1]);
          next[r + 1] = _mm512_unpackhi_epi32(row[r], row[r + 1]);
        }
        for (int r = 0; r < 16; r += 4) {
          row[r] = _mm512_unpacklo_epi64(next[r], next[r + 2]);
          row[r + 1] = _mm512_unpackhi_epi64(next[r], next[r + 2]);
          row[r + 2] = _mm512_unpacklo_epi64(next[r + 1], next[r + 3]);
          row[r + 3] = _mm512_unpackhi_epi64(next[r + 1], next[r + 3]);
        }
        for (int r = 0; r < 4; ++r) {  // row[r + 4 k] lane 4 l + j: pair 4 l + r of position 4 k + j
          const __m512i a = _mm512_shuffle_i32x4(row[r], row[r + 4], 0x88);
          const __m512i b = _mm512_shuffle_i32x4(row[r], row[r + 4], 0xdd);
          const __m512i c = _mm512_shuffle_i32x4(row[r + 8], row[r + 12], 0x88);
          const __m512i e = _mm512_shuffle_i32x4(row[r + 8], row[r + 12], 0xdd);
          std::int32_t* out = to + (d / 2 + r) * 16;
          _mm512_storeu_si512(out, _mm512_shuffle_i32x4(a, c, 0x88));
          _mm512_storeu_si512(out + 4 * 16, _mm512_shuffle_i32x4(b, e, 0x88));
          _mm512_storeu_si512(out + 8 * 16, _mm512_shuffle_i32x4(a, c, 0xdd));
          _mm512_storeu_si512(out + 12 * 16, _mm512_shuffle_i32x4(b, e, 0xdd));
        }
      }
      to += width / 2 * 16;
    }
  }

  // scores[row, transposed_positions] of `rows` queries, rows of scores `stride` floats apart.
  template <int rows>
  static void score_transposed(const std::int16_t* query, const float* query_units, const std::int32_t* keys,
                               const float* key_units, std::int64_t width, float* scores, std::int64_t stride) {
    __m512i sum[rows][2];
    for (int r = 0; r < rows; ++r) sum[r][0] = sum[r][1] = _mm512_setzero_si512();
    const std::int32_t* second = keys + width / 2 * 16;
    for (std::int64_t pair = 0; pair < width / 2; ++pair) {
      const __m512i a = _mm512_loadu_si512(keys + pair * 16);
      const __m512i b = _mm512_loadu_si512(second + pair * 16);
      for (int r = 0; r < rows; ++r) {
        std::int32_t both;
        __builtin_memcpy(&both, query + r * width + 2 * pair, sizeof both);
        const __m512i q = _mm512_set1_epi32(both);
        sum[r][0] = add_products(sum[r][0], q, a);
        sum[r][1] = add_products(sum[r][1], q, b);
      }
    }
    for (int r = 0; r < rows; ++r) {
      const __m512 unit = _mm512_set1_ps(query_units[r]);
      for (int v = 0; v < 2; ++v) {
        const __m512 factor = _mm512_mul_ps(unit, _mm512_loadu_ps(key_units + 16 * v));
        _mm512_storeu_ps(scores + r * stride + 16 * v, _mm512_mul_ps(_mm512_cvtepi32_ps(sum[r][v]), factor));
      }
    }
  }
};

}  // namespace
}  // namespace lily::cpu
