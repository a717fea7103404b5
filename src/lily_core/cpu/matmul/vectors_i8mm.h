// cpu/matmul/vectors_i8mm.h -- NEON with 8-bit matrix products: 2 weight rows times 2 rows of activations, 8 columns.
//
// One instruction makes 32 products, where a dot product makes 16, and it multiplies unsigned codes with signed
// activations, so 8-bit codes go in whole. Its two rows of activations are the halves of one: any number of activation
// rows then fills it.
//
// A chunk is 8 columns. Unpacked codes of a chunk lie as [2][kTileRows / 4][2 rows][8]: the pairs of rows (0, 1), (4,
// 5)
// ... and then the pairs (2, 3), (6, 7) ... Activations of a chunk are 8 high halves and then 8 low ones, chunk after
// chunk in `high` of a BlockInput; its `low` is not used.
#pragma once

#include "cpu/matmul/vectors_neon.h"

namespace lily::cpu {
namespace {

struct I8mm : Neon {
  static constexpr int block_rows = 4;
  static constexpr int block_vectors = 2;

  // [row][high, low] of the weight rows (0, 1) and (2, 3) of a vector.
  struct Sums {
    Int first = vdupq_n_s32(0);
    Int second = vdupq_n_s32(0);
  };

  static Int total(const Sums& sums) {
    return vaddq_s32(vshlq_n_s32(vuzp1q_s32(sums.first, sums.second), 8), vuzp2q_s32(sums.first, sums.second));
  }

  static Int multiply_add(Int sum, Int codes, int8x16_t x) { return vusmmlaq_s32(sum, vreinterpretq_u8_s32(codes), x); }

  // 8 bytes of each of two rows: the first and the second ones of 16.
  static Int lower_pair(Int a, Int b) {
    return vreinterpretq_s32_s64(vzip1q_s64(vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b)));
  }
  static Int upper_pair(Int a, Int b) {
    return vreinterpretq_s32_s64(vzip2q_s64(vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b)));
  }

  // The codes of 16 bytes of 4 rows: both pairs of rows, chunk after chunk. With 4 bits a chunk is the low or the high
  // nibbles of two words.
  template <int Bits, class Rows>
  static void load_codes(const Rows& rows, std::int64_t offset, int first_row, Int (&codes)[Bits == 4 ? 8 : 4]) {
    unrolled<2>([&](auto pair) {
      const Int a = load_rows(rows, offset, first_row + 2 * pair);
      const Int b = load_rows(rows, offset, first_row + 2 * pair + 1);
      const Int lower = lower_pair(a, b);
      const Int upper = upper_pair(a, b);
      if constexpr (Bits == 4) {
        codes[pair] = low_nibbles(lower);
        codes[2 + pair] = high_nibbles(lower);
        codes[4 + pair] = low_nibbles(upper);
        codes[6 + pair] = high_nibbles(upper);
      } else {
        codes[pair] = lower;
        codes[2 + pair] = upper;
      }
    });
  }

  // sums += codes of load_codes * the chunks of x.
  template <int Bits>
  static void add_quad(Sums& sums, const Int (&codes)[Bits == 4 ? 8 : 4], const std::int8_t* x) {
    unrolled<Bits == 4 ? 4 : 2>([&](auto chunk) {
      const int8x16_t values = vld1q_s8(x + 16 * chunk);
      sums.first = multiply_add(sums.first, codes[2 * chunk], values);
      sums.second = multiply_add(sums.second, codes[2 * chunk + 1], values);
    });
  }

  // sums += codes * x over the chunk at a column. Inline, or the sums would be in memory.
  template <int Rows, int Vectors>
  [[gnu::always_inline]] static void add_chunk(const std::uint8_t* const (&codes)[Vectors],
                                               const std::int8_t* const (&x)[Rows], std::int64_t column,
                                               Sums (&sums)[Rows][Vectors]) {
    int8x16_t values[Rows];
    unrolled<Rows>([&](auto r) { values[r] = vld1q_s8(x[r] + 2 * column); });
    unrolled<Vectors>([&](auto v) {
      const Int first = vreinterpretq_s32_u8(vld1q_u8(codes[v] + column * kTileRows));
      const Int second = vreinterpretq_s32_u8(vld1q_u8(codes[v] + column * kTileRows + kStepBytes));
      unrolled<Rows>([&](auto r) {
        sums[r][v].first = multiply_add(sums[r][v].first, first, values[r]);
        sums[r][v].second = multiply_add(sums[r][v].second, second, values[r]);
      });
    });
  }

  template <int Bits, int Rows, int Vectors>
  static void group_sums(const std::uint8_t* const (&codes)[Vectors], const BlockInput<Rows>& input,
                         std::int64_t column, std::int64_t columns, Int (&sums)[Rows][Vectors]) {
    Sums parts[Rows][Vectors] = {};
    for (std::int64_t c = column; c < column + columns; c += 16) {
      add_chunk(codes, input.high, c, parts);
      add_chunk(codes, input.high, c + 8, parts);
    }
    unrolled<Rows>([&](auto r) { unrolled<Vectors>([&](auto v) { sums[r][v] = total(parts[r][v]); }); });
  }
};

}  // namespace
}  // namespace lily::cpu
