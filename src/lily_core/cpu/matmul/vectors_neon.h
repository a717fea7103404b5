// cpu/matmul/vectors_neon.h -- Armv8.2 NEON with dot products: 4 weight rows a vector.
//
// The dot product multiplies signed bytes, so 4-bit codes go in as they are and 8-bit codes as two 4-bit ones.
#pragma once

#include <arm_neon.h>

#include "cpu/matmul/tile.h"

namespace lily::cpu {
namespace {

struct Neon {
  using Int = int32x4_t;
  using Float = float32x4_t;
  static constexpr int lanes = 4;
  static constexpr int few_rows = 2;
  static constexpr int block_rows = 4;
  static constexpr int block_vectors = 4;
  static constexpr int plain_outputs = 1;

  struct Sums {
    Int high = vdupq_n_s32(0);
    Int low = vdupq_n_s32(0);
  };

  static Float zero() { return vdupq_n_f32(0.0F); }
  static Float load(const float* p) { return vld1q_f32(p); }
  static Float broadcast(float value) { return vdupq_n_f32(value); }
  static Float multiply(Float a, Float b) { return vmulq_f32(a, b); }
  static Float fma(Float a, Float b, Float c) { return vfmaq_f32(c, a, b); }
  static Float to_float(Int v) { return vcvtq_f32_s32(v); }
  static Float bits_to_float(Int v) { return vreinterpretq_f32_s32(v); }
  static void store(float* p, Float v) { vst1q_f32(p, v); }
  static void store(std::uint8_t* p, Int v) { vst1q_u8(p, vreinterpretq_u8_s32(v)); }

  static Float half_to_float(uint16x4_t v) { return vcvt_f32_f16(vreinterpret_f16_u16(v)); }
  static Float even_half_to_float(Int v, bool brain) {
    if (brain) return vreinterpretq_f32_s32(vshlq_n_s32(v, 16));
    return half_to_float(vmovn_u32(vreinterpretq_u32_s32(v)));
  }
  static Float odd_half_to_float(Int v, bool brain) {
    if (brain) return vreinterpretq_f32_s32(vandq_s32(v, vdupq_n_s32(-65536)));
    return half_to_float(vshrn_n_u32(vreinterpretq_u32_s32(v), 16));
  }

  static const std::uint8_t* bytes(const std::byte* p) { return reinterpret_cast<const std::uint8_t*>(p); }

  // 4 consecutive values as float32.
  static Float load_values(const std::byte* p, ElementType type) {
    if (type == ElementType::float32) return vreinterpretq_f32_u8(vld1q_u8(bytes(p)));
    const uint16x4_t half = vreinterpret_u16_u8(vld1_u8(bytes(p)));
    if (type == ElementType::float16) return half_to_float(half);
    return vreinterpretq_f32_u32(vshll_n_u16(half, 16));
  }

  // 16 bytes of one row.
  template <class Rows>
  static Int load_rows(const Rows& rows, std::int64_t offset, int row) {
    return vreinterpretq_s32_u8(vld1q_u8(bytes(rows.at(row) + offset)));
  }

  // 4 x 4 words.
  static void transpose_words(const Int (&in)[4], Int (&out)[4]) {
    const int64x2_t low01 = vreinterpretq_s64_s32(vzip1q_s32(in[0], in[1]));
    const int64x2_t high01 = vreinterpretq_s64_s32(vzip2q_s32(in[0], in[1]));
    const int64x2_t low23 = vreinterpretq_s64_s32(vzip1q_s32(in[2], in[3]));
    const int64x2_t high23 = vreinterpretq_s64_s32(vzip2q_s32(in[2], in[3]));
    out[0] = vreinterpretq_s32_s64(vzip1q_s64(low01, low23));
    out[1] = vreinterpretq_s32_s64(vzip2q_s64(low01, low23));
    out[2] = vreinterpretq_s32_s64(vzip1q_s64(high01, high23));
    out[3] = vreinterpretq_s32_s64(vzip2q_s64(high01, high23));
  }

  static Int low_nibbles(Int v) { return vandq_s32(v, vdupq_n_s32(0x0f0f0f0f)); }
  static Int high_nibbles(Int v) { return vreinterpretq_s32_u8(vshrq_n_u8(vreinterpretq_u8_s32(v), 4)); }

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

  // sum + codes * the Lane-th 4 of the 16 activations x.
  template <int Lane>
  static Int dot(Int sum, Int codes, int8x16_t x) {
    return vdotq_laneq_s32(sum, vreinterpretq_s8_s32(codes), x, Lane);
  }

  // codes * x summed over the steps of a quad.
  template <int Bits>
  static Int quad_dot(const Int (&codes)[Bits == 4 ? 8 : 4], const std::int8_t* x) {
    Int sum = vdupq_n_s32(0);
    const int8x16_t first = vld1q_s8(x);
    if constexpr (Bits == 4) {
      const int8x16_t second = vld1q_s8(x + 16);
      unrolled<4>([&](auto s) { sum = dot<s>(sum, codes[s], first); });
      unrolled<4>([&](auto s) { sum = dot<s>(sum, codes[4 + s], second); });
    } else {
      unrolled<4>([&](auto s) { sum = dot<s>(sum, high_nibbles(codes[s]), first); });
      sum = vshlq_n_s32(sum, 4);
      unrolled<4>([&](auto s) { sum = dot<s>(sum, low_nibbles(codes[s]), first); });
    }
    return sum;
  }

  template <int Bits>
  static void add_quad(Sums& sums, const Int (&codes)[Bits == 4 ? 8 : 4], const std::int8_t* high,
                       const std::int8_t* low) {
    sums.high = vaddq_s32(sums.high, quad_dot<Bits>(codes, high));
    sums.low = vaddq_s32(sums.low, quad_dot<Bits>(codes, low));
  }

  static Int total(const Sums& sums) { return vaddq_s32(vshlq_n_s32(sums.high, 8), sums.low); }

  enum class Nibble { whole, upper, lower };  // which part of a code byte is multiplied

  // sums += codes * x over the steps of a group. Inline, or the sums would be in memory.
  template <Nibble Part, int Rows, int Vectors>
  [[gnu::always_inline]] static void add_steps(const std::uint8_t* const (&codes)[Vectors],
                                               const std::int8_t* const (&x)[Rows], std::int64_t column,
                                               std::int64_t columns, Int (&sums)[Rows][Vectors]) {
    for (std::int64_t c = column; c < column + columns; c += 16) {
      int8x16_t values[Rows];
      unrolled<Rows>([&](auto r) { values[r] = vld1q_s8(x[r] + c); });
      unrolled<4>([&](auto s) __attribute__((always_inline)) {
        unrolled<Vectors>([&](auto v) __attribute__((always_inline)) {
          Int code = vreinterpretq_s32_u8(vld1q_u8(codes[v] + (c + 4 * s) * kTileRows));
          if constexpr (Part == Nibble::upper) code = high_nibbles(code);
          if constexpr (Part == Nibble::lower) code = low_nibbles(code);
          unrolled<Rows>([&](auto r) { sums[r][v] = dot<s>(sums[r][v], code, values[r]); });
        });
      });
    }
  }

  template <int Count, int Rows, int Vectors>
  static void shift_left(Int (&sums)[Rows][Vectors]) {
    unrolled<Rows>([&](auto r) { unrolled<Vectors>([&](auto v) { sums[r][v] = vshlq_n_s32(sums[r][v], Count); }); });
  }

  // Horner's rule over the halves of x, and over the nibbles of 8-bit codes.
  template <int Bits, int Rows, int Vectors>
  [[gnu::always_inline]] static void group_sums(const std::uint8_t* const (&codes)[Vectors],
                                                const BlockInput<Rows>& input, std::int64_t column,
                                                std::int64_t columns, Int (&sums)[Rows][Vectors]) {
    unrolled<Rows>([&](auto r) { unrolled<Vectors>([&](auto v) { sums[r][v] = vdupq_n_s32(0); }); });
    if constexpr (Bits == 4) {
      add_steps<Nibble::whole>(codes, input.high, column, columns, sums);
      shift_left<8>(sums);
      add_steps<Nibble::whole>(codes, input.low, column, columns, sums);
    } else {
      add_steps<Nibble::upper>(codes, input.high, column, columns, sums);
      shift_left<4>(sums);
      add_steps<Nibble::lower>(codes, input.high, column, columns, sums);
      shift_left<4>(sums);
      add_steps<Nibble::upper>(codes, input.low, column, columns, sums);
      shift_left<4>(sums);
      add_steps<Nibble::lower>(codes, input.low, column, columns, sums);
    }
  }
};

}  // namespace
}  // namespace lily::cpu
