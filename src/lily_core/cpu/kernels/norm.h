// cpu/kernels/norm.h -- RMS and L2 normalisation of one row.
#pragma once

#include "cpu/kernels/simd.h"

namespace lily::cpu {
namespace {

// Four strips of partial sums, so that the chains of additions are short and overlap.
template <class V>
float sum_of_squares(const float* x, std::int64_t size) {
  Strip<V> total[4];
  for (auto& strip : total) strip = Strip<V>::broadcast(0.0F);
  std::int64_t i = 0;
  for (; i + 4 * strip_width <= size; i += 4 * strip_width) {
    for (int part = 0; part < 4; ++part) {
      const auto value = Strip<V>::load(x + i + part * strip_width);
      total[part] = fma(value, value, total[part]);
    }
  }
  for (int part = 0; i < size; i += strip_width, ++part) {
    const auto value = Strip<V>::load_first(x + i, size - i);
    total[part] = fma(value, value, total[part]);
  }
  return sum_lanes((total[0] + total[2]) + (total[1] + total[3]));
}

template <class V>
float inverse_rms(const float* x, std::int64_t size, float eps) {
  return 1.0F / __builtin_sqrtf(sum_of_squares<V>(x, size) / static_cast<float>(size) + eps);
}

template <class V>
void rms_norm(const float* x, const float* weight, std::int64_t size, float eps, float* out) {
  const auto factor = Strip<V>::broadcast(inverse_rms<V>(x, size, eps));
  for (std::int64_t i = 0; i < size; i += strip_width) {
    const auto normal = Strip<V>::load_first(x + i, size - i) * factor;
    (normal * Strip<V>::load_first(weight + i, size - i)).store_first(out + i, size - i);
  }
}

template <class V>
void rms_norm_gated(const float* x, const float* weight, const float* gate, std::int64_t size, float eps, float* out) {
  const auto factor = Strip<V>::broadcast(inverse_rms<V>(x, size, eps));
  for (std::int64_t i = 0; i < size; i += strip_width) {
    const auto normal = Strip<V>::load_first(x + i, size - i) * factor;
    const auto weighted = normal * Strip<V>::load_first(weight + i, size - i);
    (weighted * silu(Strip<V>::load_first(gate + i, size - i))).store_first(out + i, size - i);
  }
}

template <class V>
void l2_normalize(float* x, std::int64_t size, float eps, float scale) {
  const float norm = __builtin_sqrtf(sum_of_squares<V>(x, size) + eps);
  const auto factor = Strip<V>::broadcast(scale / norm);
  for (std::int64_t i = 0; i < size; i += strip_width) {
    (Strip<V>::load_first(x + i, size - i) * factor).store_first(x + i, size - i);
  }
}

}  // namespace
}  // namespace lily::cpu
