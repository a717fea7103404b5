// engine/sampler.h -- choosing the next token from logits: greedy, temperature, top-k, top-p, min-p.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lily {

struct Sampling {
  double temperature = 1.0;  // 0: greedy
  std::int64_t top_k = 0;    // 0: off
  double top_p = 1.0;        // 1: off
  double min_p = 0.0;        // 0: off; relative to the most probable token

  // Throws Error(invalid_argument) naming the field that is out of range.
  void validate() const;
};

// A number in [0, 1) that depends on the seed and the position only (SplitMix64 finaliser, Steele et al. 2014),
// so that a draw does not depend on what was computed or drawn before.
[[nodiscard]] double uniform_at(std::uint64_t seed, std::uint64_t position);

class Sampler {
 public:
  // The token chosen for `position` from logits [candidates]; entries past the real vocabulary are not passed in.
  // Filters in this order: temperature, top_k, top_p, min_p. Ties go to the lower id. Not-finite logits:
  // Error(backend).
  [[nodiscard]] std::int32_t sample(std::span<const float> logits, const Sampling& sampling, std::uint64_t seed,
                                    std::uint64_t position);

 private:
  std::vector<std::int32_t> candidates_;
  std::vector<double> weights_;
};

[[nodiscard]] std::int32_t argmax(std::span<const float> logits);

}  // namespace lily
