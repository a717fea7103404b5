// cpu/kernels/rope.h -- rotary position embedding of one head, rotate-half form.
#pragma once

#include "cpu/kernels/simd.h"

namespace lily::cpu {
namespace {

// (a, b) = (x[i], x[i + half]) becomes (a cos - b sin, b cos + a sin).
template <class V>
void rope(float* x, std::int64_t rotary_dim, const float* cosine, const float* sine) {
  const std::int64_t half = rotary_dim / 2;
  for (std::int64_t i = 0; i < half; i += strip_width) {
    const std::int64_t count = half - i;
    const auto a = Strip<V>::load_first(x + i, count);
    const auto b = Strip<V>::load_first(x + half + i, count);
    const auto c = Strip<V>::load_first(cosine + i, count);
    const auto s = Strip<V>::load_first(sine + i, count);
    (a * c - b * s).store_first(x + i, count);
    fma(b, c, a * s).store_first(x + half + i, count);
  }
}

}  // namespace
}  // namespace lily::cpu
