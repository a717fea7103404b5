// cpu/matmul/vectors_avx2.h -- AVX2 with FMA and F16C: 8 weight rows a vector, vpmaddubsw for the dot products.
//
// A vpmaddubsw sum of two products is at most 15 * 128 * 2 = 3840 with 4-bit codes, so 8 of them fit an int16.
// 8-bit codes are taken as two 4-bit ones.
#pragma once

#include <immintrin.h>

#include "cpu/matmul/tile.h"

namespace lily::cpu {
namespace {

struct Avx2 {
  using Int = __m256i;
  using Float = __m256;
  static constexpr int lanes = 8;
  static constexpr int plain_outputs = 1;

  struct Sums {
    Int high = _mm256_setzero_si256();
    Int low = _mm256_setzero_si256();
  };

  static Float zero() { return _mm256_setzero_ps(); }
  static Float load(const float* p) { return _mm256_loadu_ps(p); }
  static Float broadcast(float value) { return _mm256_set1_ps(value); }
  static Float multiply(Float a, Float b) { return _mm256_mul_ps(a, b); }
  static Float fma(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }
  static Float to_float(Int v) { return _mm256_cvtepi32_ps(v); }
  static Float bits_to_float(Int v) { return _mm256_castsi256_ps(v); }
  static void store(float* p, Float v) { _mm256_storeu_ps(p, v); }
  static void store(std::uint8_t* p, Int v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v); }

  // float16 bits in the low half of each word.
  static Float half_to_float(Int v) {
    const Int packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(v, v), 0x08);
    return _mm256_cvtph_ps(_mm256_castsi256_si128(packed));
  }
  static Float even_half_to_float(Int v, bool brain) {
    if (brain) return _mm256_castsi256_ps(_mm256_slli_epi32(v, 16));
    return half_to_float(_mm256_and_si256(v, _mm256_set1_epi32(0xffff)));
  }
  static Float odd_half_to_float(Int v, bool brain) {
    return brain ? _mm256_castsi256_ps(_mm256_and_si256(v, _mm256_set1_epi32(-65536)))
                 : half_to_float(_mm256_srli_epi32(v, 16));
  }

  // 8 consecutive values as float32.
  static Float load_values(const std::byte* p, ElementType type) {
    if (type == ElementType::float32) return _mm256_loadu_ps(reinterpret_cast<const float*>(p));
    const __m128i half = load_bytes(p);
    if (type == ElementType::float16) return _mm256_cvtph_ps(half);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
  }

  static __m128i load_bytes(const std::byte* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }

  // 16 bytes of each of the rows row and row + 4.
  template <class Rows>
  static Int load_rows(const Rows& rows, std::int64_t offset, int row) {
    const Int v = _mm256_castsi128_si256(load_bytes(rows.at(row) + offset));
    return _mm256_inserti128_si256(v, load_bytes(rows.at(row + 4) + offset), 1);
  }

  // 4 x 4 words within each 128-bit part.
  static void transpose_words(const Int (&in)[4], Int (&out)[4]) {
    const Int low01 = _mm256_unpacklo_epi32(in[0], in[1]);
    const Int high01 = _mm256_unpackhi_epi32(in[0], in[1]);
    const Int low23 = _mm256_unpacklo_epi32(in[2], in[3]);
    const Int high23 = _mm256_unpackhi_epi32(in[2], in[3]);
    out[0] = _mm256_unpacklo_epi64(low01, low23);
    out[1] = _mm256_unpackhi_epi64(low01, low23);
    out[2] = _mm256_unpacklo_epi64(high01, high23);
    out[3] = _mm256_unpackhi_epi64(high01, high23);
  }

  static Int low_nibbles(Int v) { return _mm256_and_si256(v, _mm256_set1_epi8(15)); }
  static Int high_nibbles(Int v) { return low_nibbles(_mm256_srli_epi32(v, 4)); }

  template <int Bits>
  static void unpack(const Int (&words)[4], Int (&codes)[Bits == 4 ? 8 : 4]) {
    unrolled<4>([&](auto j) {
      if constexpr (Bits == 4) {
        codes[2 * j] = low_nibbles(words[j]);
        codes[2 * j + 1] = high_nibbles(words[j]);
      } else {
        codes[j] = words[j];
      }
    });
  }

  static Int broadcast_word(const std::int8_t* p) {
    std::int32_t word;
    std::memcpy(&word, p, 4);
    return _mm256_set1_epi32(word);
  }

  // Pairs of int16 added.
  static Int widen(Int v) { return _mm256_madd_epi16(v, _mm256_set1_epi16(1)); }

  // codes * x summed over the steps of a quad.
  template <int Bits>
  static Int quad_dot(const Int (&codes)[Bits == 4 ? 8 : 4], const std::int8_t* x) {
    Int sum = _mm256_setzero_si256();
    if constexpr (Bits == 4) {
      unrolled<8>(
          [&](auto s) { sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(codes[s], broadcast_word(x + 4 * s))); });
      return widen(sum);
    } else {
      Int upper = _mm256_setzero_si256();
      unrolled<4>([&](auto s) {
        const Int word = broadcast_word(x + 4 * s);
        sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(low_nibbles(codes[s]), word));
        upper = _mm256_add_epi16(upper, _mm256_maddubs_epi16(high_nibbles(codes[s]), word));
      });
      return _mm256_add_epi32(widen(sum), _mm256_slli_epi32(widen(upper), 4));
    }
  }

  template <int Bits>
  static void add_quad(Sums& sums, const Int (&codes)[Bits == 4 ? 8 : 4], const std::int8_t* high,
                       const std::int8_t* low) {
    sums.high = _mm256_add_epi32(sums.high, quad_dot<Bits>(codes, high));
    sums.low = _mm256_add_epi32(sums.low, quad_dot<Bits>(codes, low));
  }

  static Int total(const Sums& sums) { return _mm256_add_epi32(_mm256_slli_epi32(sums.high, 8), sums.low); }
};

}  // namespace
}  // namespace lily::cpu
