// engine/sampler.cpp -- sampling filters and a counter-based random number.
#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "engine/error.h"

namespace lily {
namespace {

[[noreturn]] void invalid(const std::string& message) { throw Error(ErrorKind::invalid_argument, message); }

std::uint64_t mix(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15ULL;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

}  // namespace

void Sampling::validate() const {
  if (!(std::isfinite(temperature) && temperature >= 0.0)) invalid("temperature must be a number of at least 0");
  if (top_k < 0) invalid("top_k must be at least 0 (0 turns it off), not " + std::to_string(top_k));
  if (!(top_p > 0.0 && top_p <= 1.0)) invalid("top_p must be in (0, 1] (1 turns it off)");
  if (!(min_p >= 0.0 && min_p <= 1.0)) invalid("min_p must be in [0, 1] (0 turns it off)");
}

double uniform_at(std::uint64_t seed, std::uint64_t position) {
  return static_cast<double>(mix(mix(seed) ^ position) >> 11) * 0x1p-53;
}

std::int32_t argmax(std::span<const float> logits) {
  return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

std::int32_t Sampler::sample(std::span<const float> logits, const Sampling& sampling, std::uint64_t seed,
                             std::uint64_t position) {
  const std::int32_t best = argmax(logits);
  const double maximum = logits[static_cast<std::size_t>(best)];
  const bool ordered = std::none_of(logits.begin(), logits.end(), [](float logit) { return std::isnan(logit); });
  if (!ordered || !std::isfinite(maximum)) {
    throw Error(ErrorKind::backend, "the logits are not finite; no token can be sampled");
  }
  if (sampling.temperature == 0.0 || sampling.top_k == 1) return best;

  const auto weight = [&](std::int32_t id) {
    return std::exp((static_cast<double>(logits[static_cast<std::size_t>(id)]) - maximum) / sampling.temperature);
  };
  candidates_.resize(logits.size());
  std::iota(candidates_.begin(), candidates_.end(), 0);
  const auto more_probable = [&](std::int32_t a, std::int32_t b) {
    const float left = logits[static_cast<std::size_t>(a)];
    const float right = logits[static_cast<std::size_t>(b)];
    return left > right || (left == right && a < b);
  };
  if (sampling.top_k > 0 && static_cast<std::size_t>(sampling.top_k) < candidates_.size()) {
    std::nth_element(candidates_.begin(), candidates_.begin() + (sampling.top_k - 1), candidates_.end(), more_probable);
    candidates_.resize(static_cast<std::size_t>(sampling.top_k));
  }
  std::sort(candidates_.begin(), candidates_.end(), more_probable);
  weights_.resize(candidates_.size());
  std::transform(candidates_.begin(), candidates_.end(), weights_.begin(), weight);

  // The smallest set of most probable tokens whose mass reaches top_p, then those above min_p times the best.
  std::size_t kept = weights_.size();
  if (sampling.top_p < 1.0) {
    const double target = sampling.top_p * std::accumulate(weights_.begin(), weights_.end(), 0.0);
    double mass = 0.0;
    for (kept = 0; kept < weights_.size() && mass < target; ++kept) mass += weights_[kept];
  }
  while (kept > 1 && weights_[kept - 1] < sampling.min_p) --kept;

  const double target = uniform_at(seed, position) *
                        std::accumulate(weights_.begin(), weights_.begin() + static_cast<std::ptrdiff_t>(kept), 0.0);
  double mass = 0.0;
  for (std::size_t i = 0; i + 1 < kept; ++i) {
    mass += weights_[i];
    if (target < mass) return candidates_[i];
  }
  return candidates_[kept - 1];
}

}  // namespace lily
