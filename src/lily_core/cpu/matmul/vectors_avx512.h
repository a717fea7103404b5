// cpu/matmul/vectors_avx512.h -- AVX-512 with VNNI: 16 weight rows a vector, vpdpbusd for the dot products.
#pragma once

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"  // GCC 12 warns of its own intrinsics' undefined operands
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#include "cpu/matmul/tile.h"

namespace lily::cpu {
namespace {

struct Avx512 {
  using Int = __m512i;
  using Float = __m512;
  static constexpr int lanes = 16;
  static constexpr int few_rows = 4;
  static constexpr int block_rows = 8;
  static constexpr int block_vectors = 2;
  static constexpr int plain_outputs = 4;

  // Exact sums of code * high and code * low; two of each, for latency.
  struct Sums {
    Int high[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    Int low[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
  };

  static Float zero() { return _mm512_setzero_ps(); }
  static Float load(const float* p) { return _mm512_loadu_ps(p); }
  static Float broadcast(float value) { return _mm512_set1_ps(value); }
  static Float multiply(Float a, Float b) { return _mm512_mul_ps(a, b); }
  static Float fma(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }
  static Float to_float(Int v) { return _mm512_cvtepi32_ps(v); }
  static Float bits_to_float(Int v) { return _mm512_castsi512_ps(v); }
  static void store(float* p, Float v) { _mm512_storeu_ps(p, v); }
  static void store(std::uint8_t* p, Int v) { _mm512_storeu_si512(p, v); }

  static Float half_to_float(Int v) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(v)); }
  static Float even_half_to_float(Int v, bool brain) {
    return brain ? _mm512_castsi512_ps(_mm512_slli_epi32(v, 16)) : half_to_float(v);
  }
  static Float odd_half_to_float(Int v, bool brain) {
    return brain ? _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32(-65536)))
                 : half_to_float(_mm512_srli_epi32(v, 16));
  }

  // 16 consecutive values as float32.
  static Float load_values(const std::byte* p, ElementType type) {
    if (type == ElementType::float32) return _mm512_loadu_ps(p);
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    if (type == ElementType::float16) return _mm512_cvtph_ps(half);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  }

  // 16 bytes of each of the rows row, row + 4, row + 8, row + 12.
  template <class Rows>
  static Int load_rows(const Rows& rows, std::int64_t offset, int row) {
    Int v = _mm512_castsi128_si512(load_bytes(rows.at(row) + offset));
    v = _mm512_inserti32x4(v, load_bytes(rows.at(row + 4) + offset), 1);
    v = _mm512_inserti32x4(v, load_bytes(rows.at(row + 8) + offset), 2);
    return _mm512_inserti32x4(v, load_bytes(rows.at(row + 12) + offset), 3);
  }
  static __m128i load_bytes(const std::byte* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }

  // 4 x 4 words within each 128-bit part.
  static void transpose_words(const Int (&in)[4], Int (&out)[4]) {
    const Int low01 = _mm512_unpacklo_epi32(in[0], in[1]);
    const Int high01 = _mm512_unpackhi_epi32(in[0], in[1]);
    const Int low23 = _mm512_unpacklo_epi32(in[2], in[3]);
    const Int high23 = _mm512_unpackhi_epi32(in[2], in[3]);
    out[0] = _mm512_unpacklo_epi64(low01, low23);
    out[1] = _mm512_unpackhi_epi64(low01, low23);
    out[2] = _mm512_unpacklo_epi64(high01, high23);
    out[3] = _mm512_unpackhi_epi64(high01, high23);
  }

  template <int Bits>
  static void unpack(const Int (&words)[4], Int (&codes)[Bits == 4 ? 8 : 4]) {
    unrolled<4>([&](auto j) {
      if constexpr (Bits == 4) {
        const Int mask = _mm512_set1_epi8(15);
        codes[2 * j] = _mm512_and_si512(words[j], mask);
        codes[2 * j + 1] = _mm512_and_si512(_mm512_srli_epi32(words[j], 4), mask);
      } else {
        codes[j] = words[j];
      }
    });
  }

  static Int broadcast_word(const std::int8_t* p) {
    std::int32_t word;
    std::memcpy(&word, p, 4);
    return _mm512_set1_epi32(word);
  }

  template <int Bits>
  static void add_quad(Sums& sums, const Int (&codes)[Bits == 4 ? 8 : 4], const std::int8_t* high,
                       const std::int8_t* low) {
    unrolled<Bits == 4 ? 8 : 4>([&](auto s) {
      sums.high[s % 2] = _mm512_dpbusd_epi32(sums.high[s % 2], codes[s], broadcast_word(high + 4 * s));
      sums.low[s % 2] = _mm512_dpbusd_epi32(sums.low[s % 2], codes[s], broadcast_word(low + 4 * s));
    });
  }

  static Int total(const Sums& sums) {
    const Int high = _mm512_slli_epi32(_mm512_add_epi32(sums.high[0], sums.high[1]), 8);
    return _mm512_add_epi32(high, _mm512_add_epi32(sums.low[0], sums.low[1]));
  }

  // sums += codes * x over the steps of a group.
  template <int Rows, int Vectors>
  static void add_steps(const std::uint8_t* const (&codes)[Vectors], const std::int8_t* const (&x)[Rows],
                        std::int64_t column, std::int64_t columns, Int (&sums)[Rows][Vectors]) {
#pragma GCC unroll 2
    for (std::int64_t c = column; c < column + columns; c += 4) {
      Int code[Vectors];
      unrolled<Vectors>([&](auto v) { code[v] = _mm512_loadu_si512(codes[v] + c * kTileRows); });
      unrolled<Rows>([&](auto r) {
        const Int word = broadcast_word(x[r] + c);
        unrolled<Vectors>([&](auto v) { sums[r][v] = _mm512_dpbusd_epi32(sums[r][v], code[v], word); });
      });
    }
  }

  // The high halves first; their sums times 256 are where those of the low halves start.
  template <int Bits, int Rows, int Vectors>
  static void group_sums(const std::uint8_t* const (&codes)[Vectors], const BlockInput<Rows>& input,
                         std::int64_t column, std::int64_t columns, Int (&sums)[Rows][Vectors]) {
    unrolled<Rows>([&](auto r) { unrolled<Vectors>([&](auto v) { sums[r][v] = _mm512_setzero_si512(); }); });
    add_steps<Rows, Vectors>(codes, input.high, column, columns, sums);
    unrolled<Rows>([&](auto r) { unrolled<Vectors>([&](auto v) { sums[r][v] = _mm512_slli_epi32(sums[r][v], 8); }); });
    add_steps<Rows, Vectors>(codes, input.low, column, columns, sums);
  }
};

}  // namespace
}  // namespace lily::cpu
