// base/log_softmax.h -- the most probable token of a row of logits, and log-probabilities.
#pragma once

#include <cstdint>
#include <span>

namespace lily {

// Index of the largest logit; the lower one of equals.
[[nodiscard]] std::int32_t argmax(std::span<const float> logits);

// log(softmax(logits)), in double precision.
class LogSoftmax {
 public:
  // `maximum`: the largest of the logits.
  LogSoftmax(std::span<const float> logits, float maximum);
  [[nodiscard]] float of(float logit) const {
    return static_cast<float>(static_cast<double>(logit) - maximum_ - log_sum_);
  }

 private:
  double maximum_;
  double log_sum_;
};

}  // namespace lily
