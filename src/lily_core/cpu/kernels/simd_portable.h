// cpu/kernels/simd_portable.h -- VectorPortable: 4 float lanes in the compiler's own vector type, for any processor.
//
// Multiply-add is fused only where the baseline processor has the instruction.
#pragma once

#include "cpu/kernels/simd.h"

namespace lily::cpu {
namespace {

struct VectorPortable {
  static constexpr int width = 4;
  static constexpr int gdn_rows = 2;
  static constexpr int score_positions = 2;
  static constexpr int value_vectors = 2;
  using Floats = float __attribute__((vector_size(16)));
  using Words = std::int32_t __attribute__((vector_size(16)));
  using Bits = std::uint32_t __attribute__((vector_size(16)));
  using Halves = std::uint16_t __attribute__((vector_size(8)));
  Floats lanes;

  static VectorPortable load(const float* from) {
    VectorPortable result;
    __builtin_memcpy(&result.lanes, from, sizeof(Floats));
    return result;
  }
  static VectorPortable load_first(const float* from, std::int64_t count) {
    if (count >= width) return load(from);
    VectorPortable result{Floats{}};
    for (int i = 0; i < count; ++i) result.lanes[i] = from[i];
    return result;
  }
  static VectorPortable broadcast(float value) { return {Floats{value, value, value, value}}; }
  void store(float* to) const { __builtin_memcpy(to, &lanes, sizeof(Floats)); }
  void store_first(float* to, std::int64_t count) const {
    if (count >= width) return store(to);
    for (int i = 0; i < count; ++i) to[i] = lanes[i];
  }

  static Bits load_halves(const std::uint16_t* from) {
    Halves halves;
    __builtin_memcpy(&halves, from, sizeof(Halves));
    return __builtin_convertvector(halves, Bits);
  }
  static void store_halves(Bits bits, std::uint16_t* to) {
    const Halves halves = __builtin_convertvector(bits, Halves);
    __builtin_memcpy(to, &halves, sizeof(Halves));
  }
  static Bits choose(Words mask, Bits yes, Bits no) {
    const Bits bits = reinterpret_cast<Bits>(mask);
    return (bits & yes) | (~bits & no);
  }

  static VectorPortable from_bfloat16(const std::uint16_t* from) {
    return {reinterpret_cast<Floats>(load_halves(from) << 16)};
  }
  static VectorPortable from_float16(const std::uint16_t* from) {
    const Bits half = load_halves(from);
    const Bits sign = (half & 0x8000U) << 16;
    const Bits magnitude = half & 0x7fffU;
    const Bits normal = (magnitude << 13) + (112U << 23);
    const Bits special = (magnitude << 13) | 0x7f800000U;
    const Floats subnormal = __builtin_convertvector(reinterpret_cast<Words>(magnitude), Floats) * 0x1p-24F;
    const Words is_special = reinterpret_cast<Words>(magnitude) > 0x7bff;
    const Words is_subnormal = reinterpret_cast<Words>(magnitude) < 0x400;
    const Bits finite = choose(is_subnormal, reinterpret_cast<Bits>(subnormal), normal);
    return {reinterpret_cast<Floats>(sign | choose(is_special, special, finite))};
  }
  void to_bfloat16(std::uint16_t* to) const {
    const Bits bits = reinterpret_cast<Bits>(lanes);
    const Bits high = bits >> 16;
    const Bits rounded = (bits + 0x7fffU + (high & 1U)) >> 16;
    store_halves(choose(lanes != lanes, high | 0x40U, rounded), to);
  }
  // Of values within +-65504 (or NaN). Adding a power of two drops the bits that float16 lacks, to nearest even.
  void to_float16(std::uint16_t* to) const {
    const Bits bits = reinterpret_cast<Bits>(lanes);
    const Bits sign = (bits & 0x80000000U) >> 16;
    const Bits magnitude = bits & 0x7fffffffU;
    const Bits normal = (magnitude + 0xfffU + ((magnitude >> 13) & 1U) - (112U << 23)) >> 13;
    const Bits subnormal = reinterpret_cast<Bits>(reinterpret_cast<Floats>(magnitude) + 0.5F) - 0x3f000000U;
    const Words is_subnormal = reinterpret_cast<Words>(magnitude) < 0x38800000;
    const Bits nan = 0x7e00U | ((magnitude >> 13) & 0x1ffU);
    store_halves(sign | choose(lanes != lanes, nan, choose(is_subnormal, subnormal, normal)), to);
  }

  friend VectorPortable operator+(VectorPortable a, VectorPortable b) { return {a.lanes + b.lanes}; }
  friend VectorPortable operator-(VectorPortable a, VectorPortable b) { return {a.lanes - b.lanes}; }
  friend VectorPortable operator*(VectorPortable a, VectorPortable b) { return {a.lanes * b.lanes}; }
  friend VectorPortable operator/(VectorPortable a, VectorPortable b) { return {a.lanes / b.lanes}; }
  friend VectorPortable fma(VectorPortable a, VectorPortable b, VectorPortable c) {
#ifdef __FP_FAST_FMAF
    for (int i = 0; i < width; ++i) c.lanes[i] = __builtin_fmaf(a.lanes[i], b.lanes[i], c.lanes[i]);
    return c;
#else
    return {a.lanes * b.lanes + c.lanes};
#endif
  }
  static VectorPortable select(Words mask, VectorPortable yes, VectorPortable no) {
    return {
        reinterpret_cast<Floats>(choose(mask, reinterpret_cast<Bits>(yes.lanes), reinterpret_cast<Bits>(no.lanes)))};
  }
  friend VectorPortable max(VectorPortable a, VectorPortable b) { return select(a.lanes > b.lanes, a, b); }
  friend VectorPortable min(VectorPortable a, VectorPortable b) { return select(a.lanes < b.lanes, a, b); }
  // To nearest even, for |a| < 2^22: adding 1.5 * 2^23 leaves no fraction bits.
  friend VectorPortable round(VectorPortable a) {
    const Floats shifted = a.lanes + 0x1.8p23F;
    return {shifted - 0x1.8p23F};
  }
  // a * 2^n for integral n in [-250, 250], in two exact steps but for the last rounding of a subnormal.
  friend VectorPortable scale_by_power(VectorPortable a, VectorPortable n) {
    const Words shifted = reinterpret_cast<Words>(n.lanes + 0x1.8p23F);
    const Words power = shifted - 0x4b400000;
    const Words half = power >> 1;
    const Bits low = reinterpret_cast<Bits>(half + 127) << 23;
    const Bits high = reinterpret_cast<Bits>(power - half + 127) << 23;
    return {a.lanes * reinterpret_cast<Floats>(low) * reinterpret_cast<Floats>(high)};
  }

  static Floats pairs(Floats a, Floats b) {
    return __builtin_shufflevector(a, b, 0, 1, 4, 5) + __builtin_shufflevector(a, b, 2, 3, 6, 7);
  }
  // sums[i] = the sum of rows[i][0..16), for 16 rows at once; rows and sums are 64-byte aligned.
  static void sum_16(const float* rows, float* sums) {
    for (int base = 0; base < 16; base += 4) {
      const auto quad = [&](int i) {  // 4 lanes of the row base + i
        const float* row = rows + 16 * (base + i);
        return (load(row).lanes + load(row + 8).lanes) + (load(row + 4).lanes + load(row + 12).lanes);
      };
      const Floats a = pairs(quad(0), quad(1));
      const Floats b = pairs(quad(2), quad(3));
      const Floats total = __builtin_shufflevector(a, b, 0, 2, 4, 6) + __builtin_shufflevector(a, b, 1, 3, 5, 7);
      VectorPortable{total}.store(sums + base);
    }
  }
};

}  // namespace
}  // namespace lily::cpu
