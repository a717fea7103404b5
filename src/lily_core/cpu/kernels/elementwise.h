// cpu/kernels/elementwise.h -- gates, axpy, softmax and the conversion to the cache type, over one row.
#pragma once

#include "cpu/kernels.h"
#include "cpu/kernels/simd.h"

namespace lily::cpu {
namespace {

template <class V>
void silu_multiply(const float* gate, const float* up, std::int64_t size, float* out) {
  for (std::int64_t i = 0; i < size; i += strip_width) {
    const auto gated = silu(Strip<V>::load_first(gate + i, size - i));
    (gated * Strip<V>::load_first(up + i, size - i)).store_first(out + i, size - i);
  }
}

template <class V>
void sigmoid_multiply(float* x, const float* gate, std::int64_t size) {
  for (std::int64_t i = 0; i < size; i += strip_width) {
    const auto factor = sigmoid(Strip<V>::load_first(gate + i, size - i));
    (Strip<V>::load_first(x + i, size - i) * factor).store_first(x + i, size - i);
  }
}

template <class V>
void axpy(float alpha, const float* x, std::int64_t size, float* y) {
  const auto factor = Strip<V>::broadcast(alpha);
  for (std::int64_t i = 0; i < size; i += strip_width) {
    const auto sum = Strip<V>::load_first(y + i, size - i);
    fma(factor, Strip<V>::load_first(x + i, size - i), sum).store_first(y + i, size - i);
  }
}

// The largest of size >= 1 values.
template <class V>
float largest(const float* x, std::int64_t size) {
  auto best = Strip<V>::broadcast(x[0]);
  std::int64_t i = 0;
  for (; i + strip_width <= size; i += strip_width) best = max(best, Strip<V>::load(x + i));
  float result = max_lanes(best);
  for (; i < size; ++i) result = x[i] > result ? x[i] : result;
  return result;
}

// out = exp(x - shift); returns the sum. out may be x.
template <class V>
float exp_shifted(const float* x, std::int64_t size, float shift, float* out) {
  const auto offset = Strip<V>::broadcast(shift);
  auto total = Strip<V>::broadcast(0.0F);
  std::int64_t i = 0;
  for (; i + strip_width <= size; i += strip_width) {
    const auto value = exp(Strip<V>::load(x + i) - offset);
    value.store(out + i);
    total = total + value;
  }
  if (i < size) {
    exp(Strip<V>::load_first(x + i, size - i) - offset).store_first(out + i, size - i);
    total = total + Strip<V>::load_first(out + i, size - i);  // zero beyond size
  }
  return sum_lanes(total);
}

template <class V>
void softmax(const float* logits, std::int64_t size, float* probabilities) {
  if (size <= 0) return;
  const float sum = exp_shifted<V>(logits, size, largest<V>(logits, size), probabilities);
  const auto factor = Strip<V>::broadcast(1.0F / sum);
  for (std::int64_t i = 0; i < size; i += strip_width) {
    (Strip<V>::load_first(probabilities + i, size - i) * factor).store_first(probabilities + i, size - i);
  }
}

// 16 cache values at `from` as floats.
template <class V>
Strip<V> load_kv(const std::uint16_t* from, KvType type) {
  if (type == KvType::bfloat16) {
    return Strip<V>::make([&](int i) { return V::from_bfloat16(from + i * V::width); });
  }
  return Strip<V>::make([&](int i) { return V::from_float16(from + i * V::width); });
}

template <class V>
Strip<V> load_kv_first(const std::uint16_t* from, KvType type, std::int64_t count) {
  if (count >= strip_width) return load_kv<V>(from, type);
  std::uint16_t values[strip_width] = {};
  for (std::int64_t i = 0; i < count; ++i) values[i] = from[i];
  return load_kv<V>(values, type);
}

template <class V>
void store_strip_kv(const Strip<V>& strip, KvType type, std::uint16_t* to) {
  for (int i = 0; i < Strip<V>::parts; ++i) {
    if (type == KvType::bfloat16) {
      strip.part[i].to_bfloat16(to + i * V::width);
    } else {
      const V bounded = min(V::broadcast(65504.0F), max(V::broadcast(-65504.0F), strip.part[i]));
      bounded.to_float16(to + i * V::width);
    }
  }
}

template <class V>
void store_kv(const float* x, std::int64_t size, KvType type, std::uint16_t* out) {
  std::int64_t i = 0;
  for (; i + strip_width <= size; i += strip_width) store_strip_kv(Strip<V>::load(x + i), type, out + i);
  if (i == size) return;
  std::uint16_t values[strip_width];
  store_strip_kv(Strip<V>::load_first(x + i, size - i), type, values);
  __builtin_memcpy(out + i, values, static_cast<std::size_t>(size - i) * sizeof(std::uint16_t));
}

}  // namespace
}  // namespace lily::cpu
