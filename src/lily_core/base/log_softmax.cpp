// base/log_softmax.cpp -- sums of exponentials in double precision.
#include "base/log_softmax.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>

namespace lily {
namespace {

constexpr std::ptrdiff_t kBlock = 64;  // values of a loop that compilers vectorize

// NaN apart; -inf of nothing.
float largest(std::span<const float> values) {
  std::array<float, kBlock> lanes;
  lanes.fill(-std::numeric_limits<float>::infinity());
  const float* next = values.data();
  const float* const end = next + values.size();
  for (; end - next >= kBlock; next += kBlock) {
    for (std::size_t i = 0; i < lanes.size(); ++i) lanes[i] = next[i] > lanes[i] ? next[i] : lanes[i];
  }
  for (std::size_t i = 0; next < end; ++next, ++i) lanes[i] = *next > lanes[i] ? *next : lanes[i];
  return *std::max_element(lanes.begin(), lanes.end());
}

// Whether one of the kBlock values is `value`.
bool holds(const float* values, float value) {
  bool found = false;
  for (std::ptrdiff_t i = 0; i < kBlock; ++i) found |= values[i] == value;
  return found;
}

}  // namespace

std::int32_t argmax(std::span<const float> logits) {
  const float maximum = largest(logits);
  const float* first = logits.data();
  const float* const end = first + logits.size();
  while (end - first >= kBlock && !holds(first, maximum)) first += kBlock;
  const float* const place = std::find(first, end, maximum);
  return place == end ? 0 : static_cast<std::int32_t>(place - logits.data());
}

LogSoftmax::LogSoftmax(std::span<const float> logits, float maximum) : maximum_(maximum) {
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - maximum_);
  log_sum_ = std::log(sum);
}

}  // namespace lily
