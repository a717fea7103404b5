// engine/sampler.h -- choosing the next token from logits: penalties, bias, mask, temperature, top-k, top-p, min-p.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/log_softmax.h"

namespace lily {

struct Sampling {
  double temperature = 1.0;  // 0: greedy
  std::int64_t top_k = 0;    // 0: off
  double top_p = 1.0;        // 1: off
  double min_p = 0.0;        // 0: off; relative to the most probable token
  // Penalties of tokens in the output so far: subtracted once, subtracted for each occurrence, and dividing positive
  // (multiplying negative) logits once.
  double presence_penalty = 0.0;
  double frequency_penalty = 0.0;
  double repetition_penalty = 1.0;
  std::vector<std::pair<std::int32_t, float>> logit_bias;  // (id, added to its logit); -inf forbids the token

  // Throws Error(invalid_argument) naming the field that is out of range.
  void validate() const;
  [[nodiscard]] bool penalizes() const {
    return presence_penalty != 0.0 || frequency_penalty != 0.0 || repetition_penalty != 1.0;
  }
};

// 64 random bits that depend on the seed and the position only (SplitMix64 finaliser, Steele et al. 2014), so that a
// draw does not depend on what was computed or drawn before. uniform_at: the same as a number in [0, 1).
[[nodiscard]] std::uint64_t random_at(std::uint64_t seed, std::uint64_t position);
[[nodiscard]] double uniform_at(std::uint64_t seed, std::uint64_t position);

// Ids that a token may have: bit id % 32 of word id / 32 allows an id; empty: all are.
using TokenMask = std::span<const std::uint32_t>;

struct SamplerInput {
  std::span<const float> logits;  // [candidates]; entries past the real vocabulary are not passed in
  std::uint64_t seed = 0;
  std::uint64_t position = 0;            // of the token that is chosen
  std::span<const std::int32_t> output;  // generated so far: what the penalties look at
  TokenMask mask;
};

struct TokenLogprob {
  std::int32_t id;
  float logprob;  // natural logarithm
};

class Sampler {
 public:
  // Penalties, bias and mask first, then the filters in this order: temperature, top_k, top_p, min_p, in the integers
  // of base/sampling_arithmetic.h. Ties go to the lower id. Logits that are not finite: Error(backend). Nothing
  // allowed: Error(invalid_argument).
  [[nodiscard]] std::int32_t sample(const SamplerInput& input, const Sampling& sampling);

 private:
  [[nodiscard]] std::span<const float> adjust(const SamplerInput& input, const Sampling& sampling);
  void count(std::span<const std::int32_t> output, std::size_t vocab_size);
  void select(std::span<const float> logits, std::size_t limit);
  [[nodiscard]] bool draw(const SamplerInput& input, const Sampling& sampling, std::span<const float> logits,
                          float maximum, std::int32_t& token);

  std::vector<std::int32_t> candidates_;
  std::vector<std::uint64_t> masses_;  // of candidates_
  std::vector<float> adjusted_;
  std::vector<std::int32_t> counted_;   // the output that counts_ holds
  std::vector<std::int32_t> distinct_;  // its ids, each once
  std::vector<std::uint32_t> counts_;   // [vocab_size]
};

// The log-probability of a token and of the `top` most probable ones, from unmodified logits.
struct Logprobs {
  float chosen = 0.0F;
  std::vector<TokenLogprob> top;
};
[[nodiscard]] Logprobs logprobs_of(std::span<const float> logits, std::int32_t token, std::int64_t top);

}  // namespace lily
