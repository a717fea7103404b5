// engine/sampler.cpp -- penalties, sampling filters, log-probabilities and a counter-based random number.
#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include "base/error.h"
#include "base/sampling_arithmetic.h"

namespace lily {
namespace {

[[noreturn]] void invalid(const std::string& message) { throw Error(ErrorKind::invalid_argument, message); }

constexpr std::size_t kFirstCandidates = 256;
constexpr std::size_t kHeapShare = 32;  // at most one of that many ids is selected with a heap
constexpr float kForbidden = -std::numeric_limits<float>::infinity();

std::size_t index(std::int32_t id) { return static_cast<std::size_t>(id); }

std::uint64_t mix(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15ULL;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

bool has_nan(std::span<const float> values) {
  bool found = false;
  for (const float value : values) found |= value != value;
  return found;
}

}  // namespace

void Sampling::validate() const {
  if (!(std::isfinite(temperature) && temperature >= 0.0)) invalid("temperature must be a number of at least 0");
  if (top_k < 0) invalid("top_k must be at least 0 (0 turns it off), not " + std::to_string(top_k));
  if (!(top_p > 0.0 && top_p <= 1.0)) invalid("top_p must be in (0, 1] (1 turns it off)");
  if (!(min_p >= 0.0 && min_p <= 1.0)) invalid("min_p must be in [0, 1] (0 turns it off)");
  if (!std::isfinite(presence_penalty)) invalid("presence_penalty must be a finite number (0 turns it off)");
  if (!std::isfinite(frequency_penalty)) invalid("frequency_penalty must be a finite number (0 turns it off)");
  if (!(std::isfinite(repetition_penalty) && repetition_penalty > 0.0)) {
    invalid("repetition_penalty must be a number above 0 (1 turns it off)");
  }
  for (const auto& [id, bias] : logit_bias) {
    if (id < 0) invalid("logit_bias contains the id " + std::to_string(id) + ", which is not a token");
    if (std::isnan(bias) || bias == std::numeric_limits<float>::infinity()) {
      invalid("logit_bias of token " + std::to_string(id) + " must be a finite number or -inf");
    }
  }
}

std::uint64_t random_at(std::uint64_t seed, std::uint64_t position) { return mix(mix(seed) ^ position); }

double uniform_at(std::uint64_t seed, std::uint64_t position) {
  return static_cast<double>(random_at(seed, position) >> 11) * 0x1p-53;
}

void Sampler::count(std::span<const std::int32_t> output, std::size_t vocab_size) {
  const bool grown = output.size() >= counted_.size() && counts_.size() == vocab_size &&
                     std::equal(counted_.begin(), counted_.end(), output.begin());
  if (!grown) {
    counts_.assign(vocab_size, 0);
    counted_.clear();
    distinct_.clear();
  }
  for (std::size_t i = counted_.size(); i < output.size(); ++i) {
    const std::int32_t id = output[i];
    counted_.push_back(id);
    if (id < 0 || index(id) >= vocab_size) continue;
    if (counts_[index(id)]++ == 0) distinct_.push_back(id);
  }
}

std::span<const float> Sampler::adjust(const SamplerInput& input, const Sampling& sampling) {
  if (!sampling.penalizes() && sampling.logit_bias.empty() && input.mask.empty()) return input.logits;
  adjusted_.assign(input.logits.begin(), input.logits.end());
  if (sampling.penalizes()) {
    count(input.output, adjusted_.size());
    for (const std::int32_t id : distinct_) {
      double logit = adjusted_[index(id)];
      logit = logit > 0.0 ? logit / sampling.repetition_penalty : logit * sampling.repetition_penalty;
      logit -= sampling.presence_penalty + sampling.frequency_penalty * counts_[index(id)];
      adjusted_[index(id)] = static_cast<float>(logit);
    }
  }
  for (const auto& [id, bias] : sampling.logit_bias) {
    if (index(id) < adjusted_.size()) adjusted_[index(id)] += bias;
  }
  if (!input.mask.empty()) {
    for (std::size_t id = 0; id < adjusted_.size(); ++id) {
      const std::size_t word = id / 32;
      if (word >= input.mask.size() || ((input.mask[word] >> (id % 32)) & 1U) == 0) adjusted_[id] = kForbidden;
    }
  }
  return adjusted_;
}

// The `limit` most probable allowed candidates, in that order.
void Sampler::select(std::span<const float> logits, std::size_t limit) {
  const auto more_probable = [&](std::int32_t a, std::int32_t b) {
    const float left = logits[index(a)];
    const float right = logits[index(b)];
    return left > right || (left == right && a < b);
  };
  candidates_.clear();
  if (limit * kHeapShare > logits.size()) {
    for (std::size_t id = 0; id < logits.size(); ++id) {
      if (logits[id] > kForbidden) candidates_.push_back(static_cast<std::int32_t>(id));
    }
    std::sort(candidates_.begin(), candidates_.end(), more_probable);
    candidates_.resize(std::min(limit, candidates_.size()));
    return;
  }
  // A heap with the least probable of the best at its front, so that most ids cost one comparison.
  for (std::size_t id = 0; id < logits.size(); ++id) {
    if (candidates_.size() == limit) {
      if (!(logits[id] > logits[index(candidates_.front())])) continue;
      std::pop_heap(candidates_.begin(), candidates_.end(), more_probable);
      candidates_.pop_back();
    } else if (logits[id] == kForbidden) {
      continue;
    }
    candidates_.push_back(static_cast<std::int32_t>(id));
    std::push_heap(candidates_.begin(), candidates_.end(), more_probable);
  }
  std::sort_heap(candidates_.begin(), candidates_.end(), more_probable);
}

// Draws among candidates_. They may be the most probable ones only: false if the filters or the draw reach beyond them.
bool Sampler::draw(const SamplerInput& input, const Sampling& sampling, std::span<const float> logits, float maximum,
                   std::int32_t& token) {
  const SamplingUnits units = sampling::units_of(sampling.temperature, sampling.top_p, sampling.min_p);
  const std::uint64_t least = std::uint64_t{units.min_p} << (sampling::kMassBits - 31);
  std::uint64_t total = 0;
  std::uint64_t kept = 0;  // first the mass above min_p
  const auto add = [&](float logit) {
    const std::uint64_t mass = sampling::mass_of(logit, maximum, units.scale);
    total += mass;
    if (mass >= least) kept += mass;
    return mass;
  };
  masses_.clear();
  for (const std::int32_t id : candidates_) masses_.push_back(add(logits[index(id)]));
  if (sampling.top_k == 0 && candidates_.size() < logits.size()) {
    total = kept = 0;
    for (const float logit : logits) add(logit);
  }
  if (units.top_p < sampling::kFractionUnit) {
    const std::uint64_t share = sampling::share_of(total, units.top_p);
    std::uint64_t mass = 0;
    for (std::size_t i = 0; i < masses_.size() && mass < share; ++i) mass += masses_[i];
    if (mass < share) return false;
    kept = std::min(kept, mass);
  }

  const std::uint64_t target = sampling::scaled_draw(kept, random_at(input.seed, input.position));
  std::uint64_t mass = 0;
  for (std::size_t i = 0; i < masses_.size(); ++i) {
    mass += masses_[i];
    token = candidates_[i];
    if (target < mass) return true;
  }
  return false;
}

std::int32_t Sampler::sample(const SamplerInput& input, const Sampling& sampling) {
  if (has_nan(input.logits) || !std::isfinite(input.logits[index(argmax(input.logits))])) {
    throw Error(ErrorKind::backend, "the logits are not finite; no token can be sampled");
  }
  const std::span<const float> logits = adjust(input, sampling);
  const std::int32_t best = argmax(logits);
  const float maximum = logits[index(best)];
  if (maximum == kForbidden) invalid("the mask and logit_bias allow no token");
  if (sampling.temperature == 0.0 || sampling.top_k == 1 || std::isinf(maximum)) return best;

  // Without top_k the most probable tokens nearly always decide: all of them are sorted only if those do not.
  std::int32_t token = best;
  const std::size_t size = logits.size();
  const std::size_t top_k = std::min(static_cast<std::size_t>(sampling.top_k), size);
  for (std::size_t limit = top_k > 0 ? top_k : std::min(kFirstCandidates, size);; limit = size) {
    select(logits, limit);
    if (draw(input, sampling, logits, maximum, token) || limit >= size || top_k > 0) return token;
  }
}

Logprobs logprobs_of(std::span<const float> logits, std::int32_t token, std::int64_t top) {
  const LogSoftmax log_softmax(logits, logits[index(argmax(logits))]);
  const auto logprob = [&](std::int32_t id) { return log_softmax.of(logits[index(id)]); };
  Logprobs result{.chosen = logprob(token), .top = {}};
  std::vector<std::int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto count = std::min<std::int64_t>(top, static_cast<std::int64_t>(ids.size()));
  std::partial_sort(ids.begin(), ids.begin() + count, ids.end(), [&](std::int32_t a, std::int32_t b) {
    return logits[index(a)] > logits[index(b)] || (logits[index(a)] == logits[index(b)] && a < b);
  });
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int32_t id = ids[static_cast<std::size_t>(i)];
    result.top.push_back({.id = id, .logprob = logprob(id)});
  }
  return result;
}

}  // namespace lily
