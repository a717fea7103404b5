// cpu/kernels/simd_neon.h -- VectorNeon: 4 float lanes in one register (Armv8 NEON).
#pragma once

#include <arm_neon.h>

#include "cpu/kernels/simd.h"

namespace lily::cpu {
namespace {

struct VectorNeon {
  static constexpr int width = 4;
  static constexpr int gdn_rows = 4;
  static constexpr int score_positions = 4;
  static constexpr int value_vectors = 4;
  float32x4_t lanes;

  static VectorNeon load(const float* from) { return {vld1q_f32(from)}; }
  static VectorNeon load_first(const float* from, std::int64_t count) {
    if (count >= width) return load(from);
    alignas(16) float lane[4] = {};
    for (int i = 0; i < count; ++i) lane[i] = from[i];
    return {vld1q_f32(lane)};
  }
  static VectorNeon broadcast(float value) { return {vdupq_n_f32(value)}; }
  void store(float* to) const { vst1q_f32(to, lanes); }
  void store_first(float* to, std::int64_t count) const {
    if (count >= width) return store(to);
    alignas(16) float lane[4];
    vst1q_f32(lane, lanes);
    for (int i = 0; i < count; ++i) to[i] = lane[i];
  }

  static VectorNeon from_bfloat16(const std::uint16_t* from) {
    return {vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(from), 16))};
  }
  static VectorNeon from_float16(const std::uint16_t* from) {
    return {vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from)))};
  }
  void to_bfloat16(std::uint16_t* to) const {
    const uint32x4_t bits = vreinterpretq_u32_f32(lanes);
    const uint32x4_t high = vshrq_n_u32(bits, 16);
    const uint32x4_t odd = vandq_u32(high, vdupq_n_u32(1));
    const uint32x4_t rounded = vshrq_n_u32(vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd), 16);
    const uint32x4_t quiet = vorrq_u32(high, vdupq_n_u32(0x40));
    vst1_u16(to, vmovn_u32(vbslq_u32(vceqq_f32(lanes, lanes), rounded, quiet)));
  }
  void to_float16(std::uint16_t* to) const { vst1_u16(to, vreinterpret_u16_f16(vcvt_f16_f32(lanes))); }

  friend VectorNeon operator+(VectorNeon a, VectorNeon b) { return {vaddq_f32(a.lanes, b.lanes)}; }
  friend VectorNeon operator-(VectorNeon a, VectorNeon b) { return {vsubq_f32(a.lanes, b.lanes)}; }
  friend VectorNeon operator*(VectorNeon a, VectorNeon b) { return {vmulq_f32(a.lanes, b.lanes)}; }
  friend VectorNeon operator/(VectorNeon a, VectorNeon b) { return {vdivq_f32(a.lanes, b.lanes)}; }
  friend VectorNeon fma(VectorNeon a, VectorNeon b, VectorNeon c) { return {vfmaq_f32(c.lanes, a.lanes, b.lanes)}; }
  friend VectorNeon max(VectorNeon a, VectorNeon b) { return {vmaxq_f32(a.lanes, b.lanes)}; }
  friend VectorNeon min(VectorNeon a, VectorNeon b) { return {vminq_f32(a.lanes, b.lanes)}; }
  friend VectorNeon round(VectorNeon a) { return {vrndnq_f32(a.lanes)}; }
  // a * 2^n for integral n in [-250, 250], in two exact steps but for the last rounding of a subnormal.
  friend VectorNeon scale_by_power(VectorNeon a, VectorNeon n) {
    const int32x4_t power = vcvtq_s32_f32(n.lanes);
    const int32x4_t half = vshrq_n_s32(power, 1);
    const auto factor = [](int32x4_t exponent) {
      return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(exponent, vdupq_n_s32(127)), 23));
    };
    return {vmulq_f32(vmulq_f32(a.lanes, factor(half)), factor(vsubq_s32(power, half)))};
  }

  static float32x4_t pairs(float32x4_t a, float32x4_t b) {
    const float64x2_t c = vreinterpretq_f64_f32(a);
    const float64x2_t d = vreinterpretq_f64_f32(b);
    return vaddq_f32(vreinterpretq_f32_f64(vzip1q_f64(c, d)), vreinterpretq_f32_f64(vzip2q_f64(c, d)));
  }
  // sums[i] = the sum of rows[i][0..16), for 16 rows at once.
  static void sum_16(const float* rows, float* sums) {
    for (int base = 0; base < 16; base += 4) {
      const auto quad = [&](int i) {  // 4 lanes of the row base + i
        const float* row = rows + 16 * (base + i);
        return vaddq_f32(vaddq_f32(vld1q_f32(row), vld1q_f32(row + 8)),
                         vaddq_f32(vld1q_f32(row + 4), vld1q_f32(row + 12)));
      };
      const float32x4_t a = pairs(quad(0), quad(1));
      const float32x4_t b = pairs(quad(2), quad(3));
      vst1q_f32(sums + base, vaddq_f32(vuzp1q_f32(a, b), vuzp2q_f32(a, b)));
    }
  }
};

}  // namespace
}  // namespace lily::cpu
