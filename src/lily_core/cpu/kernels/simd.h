// cpu/kernels/simd.h -- Strip: 16 float lanes over any vector class, and what every float kernel is written with.
//
// A vector class V has V::width (4, 8 or 16) lanes; a strip is 16 / V::width of them. Sums keep 16 partial sums and
// add them as a fixed tree, so a result does not depend on the width: instruction sets that have fused multiply-add
// agree bit for bit. max(a, b) is b where either is NaN or, on ARM, NaN.
//
// Each instruction set compiles these headers with its own flags. Everything is in an unnamed namespace and no inline
// function of the standard library or of the engine is called: the linker could keep the wrong copy of it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lily::cpu {
namespace {

constexpr std::int64_t strip_width = 16;

template <class V>
struct Strip {
  static constexpr int parts = 16 / V::width;
  V part[parts];

  template <class Function>
  static Strip make(Function function) {
    Strip result;
    for (int i = 0; i < parts; ++i) result.part[i] = function(i);
    return result;
  }
  static Strip load(const float* from) {
    return make([&](int i) { return V::load(from + i * V::width); });
  }
  // The first `count` values, zero beyond; reads nothing else. count may be anything.
  static Strip load_first(const float* from, std::int64_t count) {
    if (count >= strip_width) return load(from);
    return make([&](int i) { return V::load_first(from + i * V::width, count - i * V::width); });
  }
  static Strip broadcast(float value) {
    return make([&](int) { return V::broadcast(value); });
  }
  void store(float* to) const {
    for (int i = 0; i < parts; ++i) part[i].store(to + i * V::width);
  }
  void store_first(float* to, std::int64_t count) const {
    if (count >= strip_width) return store(to);
    for (int i = 0; i < parts; ++i) part[i].store_first(to + i * V::width, count - i * V::width);
  }

  friend Strip operator+(const Strip& a, const Strip& b) {
    return make([&](int i) { return a.part[i] + b.part[i]; });
  }
  friend Strip operator-(const Strip& a, const Strip& b) {
    return make([&](int i) { return a.part[i] - b.part[i]; });
  }
  friend Strip operator*(const Strip& a, const Strip& b) {
    return make([&](int i) { return a.part[i] * b.part[i]; });
  }
  friend Strip operator/(const Strip& a, const Strip& b) {
    return make([&](int i) { return a.part[i] / b.part[i]; });
  }
};

// a * b + c, fused where the instruction set can.
template <class V>
Strip<V> fma(const Strip<V>& a, const Strip<V>& b, const Strip<V>& c) {
  return Strip<V>::make([&](int i) { return fma(a.part[i], b.part[i], c.part[i]); });
}

template <class V>
Strip<V> max(const Strip<V>& a, const Strip<V>& b) {
  return Strip<V>::make([&](int i) { return max(a.part[i], b.part[i]); });
}

// The tree that every sum of 16 lanes follows: lane i + 8, then + 4, + 2, + 1.
template <class V>
float sum_lanes(const Strip<V>& strip) {
  alignas(64) float lane[16];
  strip.store(lane);
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lane[i] += lane[i + half];
  }
  return lane[0];
}

template <class V>
float max_lanes(const Strip<V>& strip) {
  alignas(64) float lane[16];
  strip.store(lane);
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lane[i] = lane[i] > lane[i + half] ? lane[i] : lane[i + half];
  }
  return lane[0];
}

// exp, at most 1 ulp off where the result is normal: exp(x) = 2^n exp(r), r = x - n ln 2, |r| <= ln 2 / 2.
template <class V>
V exp(const V& x) {
  // Beyond these bounds the result is 0 or infinity. NaN passes, for it is the second operand.
  const V bounded = min(V::broadcast(89.0F), max(V::broadcast(-104.0F), x));
  const V n = round(bounded * V::broadcast(0x1.715476p+0F));
  // ln 2 in two parts; n * the first is exact in float32, fused or not.
  V r = fma(n, V::broadcast(-0x1.63p-1F), bounded);
  r = fma(n, V::broadcast(0x1.bd0106p-13F), r);
  // Minimax fit of (exp(r) - 1 - r) / r^2; error below 0.001 ulp of exp(r) with exact arithmetic.
  V p = fma(V::broadcast(0x1.9f085cp-13F), r, V::broadcast(0x1.6d8d52p-10F));
  p = fma(p, r, V::broadcast(0x1.111272p-7F));
  p = fma(p, r, V::broadcast(0x1.55548ep-5F));
  p = fma(p, r, V::broadcast(0x1.555554p-3F));
  p = fma(p, r, V::broadcast(0.5F));
  p = fma(p, r * r, r) + V::broadcast(1.0F);
  return scale_by_power(p, n);
}

template <class V>
Strip<V> exp(const Strip<V>& x) {
  return Strip<V>::make([&](int i) { return exp(x.part[i]); });
}

// 1 / (1 + exp(-x)); exp overflows to infinity for x < -88.7, where the result is 0.
template <class V>
Strip<V> sigmoid(const Strip<V>& x) {
  const Strip<V> one = Strip<V>::broadcast(1.0F);
  return one / (one + exp(Strip<V>::broadcast(0.0F) - x));
}

template <class V>
Strip<V> silu(const Strip<V>& x) {
  return x / (Strip<V>::broadcast(1.0F) + exp(Strip<V>::broadcast(0.0F) - x));
}

constexpr std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
constexpr std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace
}  // namespace lily::cpu
